"""Delta dumps in the schema and by the quantization of TorchEasyRec.

Source: `tzrec/utils/delta_embedding_dump.py` and `quant_util.py` of TorchEasyRec.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from numpy.typing import NDArray
from pyarrow import parquet

from kernels.row_format import RowFormat
from kernels.stored_rows import decode
from sharded_infer.errors import WeightsError
from sharded_infer.importing.changes.change_files import open_changes
from sharded_infer.importing.changes.easyrec_deltas import open_easyrec_deltas

USER, ITEM = "model.emb.ebc.embedding_bags.user_emb", "model.emb.ec.embeddings.item_emb"
Rows = NDArray[np.float32] | NDArray[np.uint8]


def _schema(value: pa.DataType) -> pa.Schema:
    kinds = {"global_step": pa.int64(), "rank": pa.int32(), "world_size": pa.int32()}
    kinds |= {"feature_name": pa.string(), "table_fqn": pa.string(), "key_id": pa.int64()}
    return pa.schema(kinds | {"embedding": pa.list_(value), "source": pa.string()})


def dump(path: Path, step: int, tables: dict[str, tuple[list[int], Rows]], rank: int = 0) -> Path:
    """One file, as a rank writes it: a chunk of each table."""
    kinds = {rows.dtype.name for _, rows in tables.values()}
    schema = _schema(pa.uint8() if kinds == {"uint8"} else pa.float32())
    path.parent.mkdir(exist_ok=True)
    with parquet.ParquetWriter(path, schema) as writer:
        for fqn, (keys, rows) in tables.items():
            columns: list[Any] = [[value] * len(keys) for value in [step, rank, 2, "f", fqn]]
            columns += [keys, list(rows), ["model_delta_tracker"] * len(keys)]
            arrays = [pa.array(*pair) for pair in zip(columns, schema.types, strict=True)]
            writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
        if not tables:
            writer.write_table(schema.empty_table())
    return path


def step_file(folder: Path, step: int, rank: int) -> Path:
    return folder / f"step_{step}" / f"delta_embedding_step_{step}_rank_{rank}_of_2.parquet"


def of(number: float, *keys: int) -> tuple[list[int], NDArray[np.float32]]:
    return list(keys), np.full((len(keys), 4), number, np.float32)


def quantized(rows: NDArray[np.float32]) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Rows of QUint8RowwiseF16, and the numbers that TorchEasyRec reads back from them."""
    offset = rows.min(axis=1, keepdims=True).astype(np.float16)
    width = rows.max(axis=1, keepdims=True) - offset.astype(np.float32)
    scale = np.where(width != 0, width / 255, 1).astype(np.float16)
    scale = np.where(scale == 0, np.float16(1), scale)
    numbers = np.rint((rows - offset.astype(np.float32)) / scale.astype(np.float32)).clip(0, 255)
    stored = np.concatenate(
        [numbers.astype(np.uint8), scale.view(np.uint8), offset.view(np.uint8)], axis=1
    )
    back = numbers * scale.astype(np.float32) + offset.astype(np.float32)
    return stored, back.astype(np.float32)


def test_the_latest_step_of_each_key_wins_over_all_ranks(tmp_path: Path) -> None:
    # Step 9 is before step 10, though not by its name.
    dump(step_file(tmp_path, 10, 0), 10, {USER: of(10, 1, 2)}, 0)
    dump(step_file(tmp_path, 10, 1), 10, {ITEM: of(10.5, -7)}, 1)
    dump(step_file(tmp_path, 9, 0), 9, {USER: of(9, 2, 3), ITEM: of(9.5, 2**62)}, 0)
    dump(step_file(tmp_path, 9, 1), 9, {}, 1)
    (tmp_path / "step_10" / "delta_embedding_step_10_rank_1_of_2.parquet.rank1.tmp").touch()
    changes = open_easyrec_deltas(tmp_path)
    found = {
        table: dict(zip(changed.ids.tolist(), changed.values[:, 0].tolist(), strict=True))
        for table, changed in changes.items()
        if changed.values is not None
    }
    assert found == {"user_emb": {1: 10, 2: 10, 3: 9}, "item_emb": {-7: 10.5, 2**62: 9.5}}
    assert open_changes(tmp_path)["user_emb"].ids.tolist() == changes["user_emb"].ids.tolist()
    assert open_changes(tmp_path / "step_9")["user_emb"].ids.tolist() == [2, 3]
    assert open_changes(step_file(tmp_path, 9, 0))["item_emb"].ids.tolist() == [2**62]


def test_int8_rows_are_taken_over_bit_for_bit(tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    rows = (rng.standard_normal((200, 8)) * rng.lognormal(0, 2, (200, 1))).astype(np.float32)
    rows[3] = 0.25
    stored, numbers = quantized(rows)
    path = dump(tmp_path / "delta_step_1.parquet", 1, {USER: (list(range(200)), stored)})
    changed = open_easyrec_deltas(path)["user_emb"]
    assert changed.row_format is RowFormat.INT8 and changed.stored is not None
    torch.testing.assert_close(
        decode(RowFormat.INT8, changed.stored, 8), torch.from_numpy(numbers), rtol=0, atol=0
    )


def test_equal_rows_of_two_ranks_are_one_row(tmp_path: Path) -> None:
    dump(step_file(tmp_path, 1, 0), 1, {USER: of(1, 1, 2)})
    dump(step_file(tmp_path, 1, 1), 1, {USER: of(1, 2, 3)})
    assert open_easyrec_deltas(tmp_path)["user_emb"].ids.tolist() == [1, 2, 3]
    dump(step_file(tmp_path, 1, 1), 1, {USER: of(5, 3, 2)})
    with pytest.raises(WeightsError, match="'user_emb': key 2 has two different rows in step 1"):
        open_easyrec_deltas(tmp_path)


def test_a_step_without_the_file_of_a_rank_is_refused(tmp_path: Path) -> None:
    dump(step_file(tmp_path, 7, 1), 7, {USER: of(1, 1)})
    with pytest.raises(WeightsError, match="embedding_step_7: .* 2 ranks, got none of rank 0"):
        open_easyrec_deltas(tmp_path)


def test_rows_of_two_forms_are_refused(tmp_path: Path) -> None:
    stored, _ = quantized(of(1, 1)[1])
    dump(tmp_path / "a.parquet", 1, {USER: of(1, 1)})
    dump(tmp_path / "b.parquet", 2, {USER: ([1], stored)})
    with pytest.raises(WeightsError, match="one form, got 4 float32 and 8 uint8"):
        open_easyrec_deltas(tmp_path)
    path = dump(tmp_path / "c.parquet", 2, {USER: ([1], stored[:, :4])})
    with pytest.raises(WeightsError, match="expected bytes of numbers and 4 more .*, got 4"):
        open_easyrec_deltas(path)


def test_two_tables_of_one_name_are_refused(tmp_path: Path) -> None:
    other = "model.other.ebc.embedding_bags.user_emb"
    path = dump(tmp_path / "delta.parquet", 1, {USER: of(1, 1), other: of(2, 1)})
    with pytest.raises(WeightsError, match=f"two tables 'user_emb', one of them '{other}'"):
        open_easyrec_deltas(path)
