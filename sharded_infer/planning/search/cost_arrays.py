"""The cost model as arrays: costs of any rectangle of any table on each class of devices."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernels.gpu.row_stride import device_strides
from sharded_infer.planning.cost_model import ID_BYTES, OUTPUT_BYTES, CostModel
from sharded_infer.planning.id_map_memory import FIXED_BYTES, ID_ROW_BYTES
from sharded_infer.planning.topology import Device

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ClassCosts:
    """Costs on one class of equal devices; arrays are `[tables]`.

    The seconds of a rectangle of `columns` columns that gets `share` of its table's ids are `share
    * (per_id + columns * per_id_column) + columns * per_column`; a replica, whose vectors stay on
    its device, costs `columns * per_column_kept` instead of the last term.
    """

    per_id: Floats
    per_id_column: Floats
    per_column: Floats
    per_column_kept: Floats

    def seconds(self, tables: Integers, share: Floats, columns: Floats) -> Floats:
        """Seconds of rectangles for a batch; `share` is each one's part of its table's ids."""
        by_id = self.per_id[tables] + columns * self.per_id_column[tables]
        return share * by_id + columns * self.per_column[tables]


@dataclass(frozen=True, slots=True)
class TableCosts:
    """All tables, sorted by name, and classes; arrays are `[tables]`, `class_of_rank` `[ranks]`.

    Attributes:
        rows, dims: int64.
        header_bytes: bytes of a row's scale and bias.
        element_bytes: bytes of an element.
        column_step: columns of a column shard are a multiple of this.
        padded: rows are padded to the device layout.
        map_bytes: of the id map beside any rectangle of a table.
        map_row_bytes: of the id map beside each row.
        is_cut_badly: a cut by rows would make the front map the table's raw ids.
    """

    names: tuple[str, ...]
    rows: Integers
    dims: Integers
    header_bytes: Floats
    element_bytes: Floats
    class_of_rank: Integers
    classes: tuple[ClassCosts, ...]
    devices: tuple[Device, ...]
    column_step: Integers
    padded: bool
    map_bytes: Floats
    map_row_bytes: Floats
    is_cut_badly: NDArray[np.bool_]

    def bytes(self, tables: Integers, rows: Floats, columns: Floats) -> Floats:
        """Bytes of rectangles, as `Plan.bytes_by_rank`, and their share of id maps."""
        # A row ends with a whole byte.
        row_bytes = self.header_bytes[tables] + np.ceil(self.element_bytes[tables] * columns)
        row_bytes = device_strides(row_bytes) if self.padded else row_bytes
        return rows * (row_bytes + self.map_row_bytes[tables]) + self.map_bytes[tables]


# 16 bytes of every row format, so that vector loads of a column shard stay whole.
_STEP_BYTES = 16


def table_costs(load: CostModel) -> TableCosts:
    """The cost model of all tables, as arrays."""
    # By name, so that the given order of tables changes nothing.
    names = tuple(sorted(load.uses))
    tables = [load.uses[name].table for name in names]
    classes: dict[Device, int] = {}
    class_of_rank = [classes.setdefault(device, len(classes)) for device in load.topology.devices]
    header = np.array([t.row_format.row_bytes(0) for t in tables], np.float64)
    element = np.array([t.row_format.element_bits / 8 for t in tables], np.float64)
    maps = np.array([load.map_bytes(name) for name in names], np.float64)
    in_parts = (maps > 0) & [load.is_cut_in_parts(name) for name in names]
    return TableCosts(
        names=names,
        rows=np.array([t.rows for t in tables], np.int64),
        dims=np.array([t.dim for t in tables], np.int64),
        header_bytes=header,
        element_bytes=element,
        class_of_rank=np.array(class_of_rank, np.int64),
        classes=tuple(_class_costs(load, device, names, header, element) for device in classes),
        devices=tuple(classes),
        column_step=np.maximum(1, _STEP_BYTES / element).astype(np.int64),
        padded=load.topology.has_gpus,
        map_bytes=np.where(in_parts, FIXED_BYTES, maps),
        map_row_bytes=np.where(in_parts, ID_ROW_BYTES, 0.0),
        is_cut_badly=(maps > 0) & ~in_parts,
    )


def _class_costs(
    load: CostModel, device: Device, names: Sequence[str], header: Floats, element: Floats
) -> ClassCosts:
    rates = [load.rates(name, device) for name in names]
    read = np.array([r.read_byte for r in rates])
    ids = np.array([r.ids for r in rates])
    vectors = np.array([r.vectors for r in rates]) * OUTPUT_BYTES
    write = np.array([r.write_byte for r in rates])
    send = np.array([r.send_byte for r in rates])
    receive = np.array([r.receive_byte for r in rates])
    mapping = np.array([r.map_id for r in rates])
    return ClassCosts(
        per_id=ids * ((header + device.granule_bytes - 1) * read + ID_BYTES * receive + mapping),
        per_id_column=ids * element * read,
        per_column=vectors * (write + send),
        per_column_kept=vectors * write,
    )
