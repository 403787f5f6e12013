"""Draft of a `model.toml` from a checkpoint's names and shapes; guesses are marked `# CHECK:`."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from kernels.row_format import RowFormat
from kernels.wording import counted
from quant.sources.weight_source import SourceError, WeightSource
from sharded_infer.errors import WeightsError
from sharded_infer.importing.draft_layers import LayerWeight
from sharded_infer.importing.draft_tables import STATE, DraftedTable, draft_tables
from sharded_infer.importing.draft_tower import DraftedTower, draft_tower
from sharded_infer.specs.sequence_input import LENGTHS
from sharded_infer.specs.spec_file import parse_spec

_MARK = "# CHECK: "
_CONTROLS = re.compile("[\x7f-\x9f]")
_HEAD = (
    "# Drafted from the names and shapes of a checkpoint. What they do not say is guessed, and "
    "marked CHECK."
)
_STATES = 40  # of optimizers, that are named
_REQUIRED = "# required = true  (every request must send its features, possibly without ids)"
DEFAULT_MAX_LENGTH = 200
_UNPOOLED = (
    "an EmbeddingCollection looks rows up one by one. Features of equal lengths are one sequence. "
    'A feature of one id, such as a candidate, is in none; its table needs pooling = "sum"'
)
_ORDER = "tables, and each one's features, in the order of their embeddings in the tower's input"


def draft_spec(source: WeightSource, name: str, *, max_length: int = DEFAULT_MAX_LENGTH) -> str:
    """Draft a `model.toml` that `load_spec` reads; guessed lines end with `# CHECK: ...`.

    `max_length` is that of each sequence: a feature of a TorchRec `EmbeddingCollection`. Raises
    SpecError for an invalid name or length; WeightsError if no weight could be a table.
    """
    sequences: dict[str, object] = {"x": {"max_length": max_length, "features": ["table"]}}
    tables_of_one = [{"name": "table", "rows": 1, "dim": 1}]
    parse_spec({"name": name, "tables": tables_of_one, "sequences": sequences}, "the draft")
    try:
        tower = draft_tower(source)
        tables, left_out = draft_tables(source, tower=tower.keys, dim=tower.dim, taken=tower.inputs)
    except SourceError as error:
        raise WeightsError(str(error)) from error
    if not tables:
        raise WeightsError(
            f"{source.description}: holds no weight of two axes that could be a table, only "
            f"{_some(source.keys())}{_layers(left_out)}"
        )
    lines = [_HEAD, "", f"name = {_string(name)}", "", _MARK + _ORDER]
    for table in tables:
        lines += ["", *_table_lines(table)]
    lines += _sequence_lines([table for table in tables if not table.pooled], tower, max_length)
    lines += _left_out_lines(left_out)
    lines += ["", *_quantization_lines(tables), *_tower_lines(tower, tables)]
    return "\n".join(lines) + "\n"


def count_checks(draft: str) -> int:
    """The number of lines marked for checking."""
    return sum(_MARK in line for line in draft.split("\n"))


def _table_lines(table: DraftedTable) -> list[str]:
    fields: dict[str, object] = {"name": table.name, "rows": table.rows, "dim": table.dim}
    fields |= {"pooling": "sum"} if table.pooled else {}
    fields |= {"features": [table.feature]}
    if not table.found_by_name:
        fields["weights"] = table.key
    if table.stored is not None:
        fields["format"] = str(table.stored)
    doubts = {
        "pooling": "sum or mean",
        "features": "all inputs that look rows up in this table",
        **table.doubts,
    }
    return ["[[tables]]", *_fields(fields, doubts), _REQUIRED]


def _sequence_lines(
    tables: Sequence[DraftedTable], tower: DraftedTower, max_length: int
) -> list[str]:
    taken = {"embeddings", *tower.inputs}
    lines = ["", _MARK + _UNPOOLED] if tables else []
    for table in tables:
        name = table.name
        while {name, name + LENGTHS} & taken:
            name += "_sequence"
        taken |= {name, name + LENGTHS}
        fields = {"max_length": max_length, "features": [table.name]}
        doubts = {"max_length": "ids of a sample that are used"}
        lines += ["", f"[sequences.{name}]", *_fields(fields, doubts)]
    return lines


def _left_out_lines(layers: Sequence[LayerWeight]) -> list[str]:
    """A line for each matrix but an optimizer's many, and how many other weights there are."""
    sure = [layer for layer in layers if layer.sure and len(layer.shape) > 1]
    states = [layer for layer in sure if layer.kind == STATE]
    sure = [layer for layer in sure if layer.kind != STATE]
    named = [*(layer for layer in layers if not layer.sure), *sure, *states[:_STATES]]
    lines = [
        f"{'# ' if layer.sure else _MARK}{layer.key!a} {list(layer.shape)} is left out: "
        f"{layer.reason}"
        for layer in named
    ]
    keys = {layer.key for layer in named}
    more = Counter(layer.kind for layer in layers if layer.key not in keys)
    if more:
        kinds = ", ".join(f"{count} ({kind})" for kind, count in more.items())
        lines.append(f"# {counted(more.total(), 'weight')} more: {kinds}")
    return ["", *lines] if lines else []


def _layers(layers: Sequence[LayerWeight]) -> str:
    if not layers:
        return ""
    return f"; {layers[0].key!a} is left out: {layers[0].reason}"


def _quantization_lines(tables: Iterable[DraftedTable]) -> list[str]:
    if all(table.stored is not None for table in tables):
        return []
    others = ", ".join(f for f in RowFormat if f is not RowFormat.INT8)
    return [
        "[quantization]",
        *_fields({"format": "int8"}, {"format": f"how rows are stored; also {others}"}),
        "",
    ]


def _tower_lines(tower: DraftedTower, tables: list[DraftedTable]) -> list[str]:
    inputs = ", ".join(f"{name} = {width}" for name, width in tower.inputs.items())
    lines = ["[dense]", f"inputs = {{ {inputs} }}"]
    if not inputs:
        lines[-1] = f"inputs = {{}}  {_MARK}name = width of each dense input"
    lines += ["", *(_MARK + doubt for doubt in tower.doubts([table.dim for table in tables]))]
    fields: dict[str, object] = dict(tower.fields)
    doubts = {"precision": "bf16 and int8 (GPUs: tf32, bf16) are faster, and less exact"} | dict(
        tower.field_doubts
    )
    return [*lines, "[tower]", *_fields({**fields, "precision": "fp32"}, doubts)]


def _fields(fields: Mapping[str, object], doubts: Mapping[str, str]) -> list[str]:
    return [
        f"{field} = {_value(value)}" + (f"  {_MARK}{doubts[field]}" if field in doubts else "")
        for field, value in fields.items()
    ]


def _value(value: object) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return _string(value) if isinstance(value, str) else str(value)


def _string(text: str) -> str:
    # JSON leaves DEL and C1 control characters unescaped; terminals obey them.
    return _CONTROLS.sub(
        lambda found: f"\\u{ord(found[0]):04x}", json.dumps(text, ensure_ascii=False)
    )


def _some(keys: Iterable[str]) -> str:
    names = list(keys)
    shown = ", ".join(map(repr, names[:8]))
    return (shown + (", ..." if len(names) > 8 else "")) or "nothing"
