"""Parsers take time in proportion to the size of their input, hostile or not."""

import gc
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import process_time
from typing import Any

import pytest

from kernels.row_format import RowFormat
from quant.sources.safetensors_files import ShardedSafetensorsSource
from serving.commands.serve import SETTINGS
from serving.config.setting_sources import read_settings
from serving.http_api.exchange import HttpRequest
from serving.http_api.infer_request import read_document
from serving.http_api.operations.model_api import ModelApi
from serving.protocol.message_format import MessageFormat
from serving.protocol.readers.input_reader import InputReader
from serving.protocol.readers.portable_reader import parse_request
from serving.protocol.request_header import header_of
from serving.protocol.request_tensors import RequestTensors
from sharded_infer.artifacts.manifest import parse_manifest
from sharded_infer.artifacts.report_file import report_from_fields
from sharded_infer.artifacts.table_file import map_table_file
from sharded_infer.errors import ShardedInferError
from sharded_infer.planning.plan import StoredTable, check_plan, load_plan
from sharded_infer.planning.topology_file import load_topology
from sharded_infer.repositories.labels import parse_labels
from sharded_infer.samples.request import batch_samples
from sharded_infer.samples.text import read_json, read_tsv
from sharded_infer.specs.spec_file import load_spec
from sharded_infer.towers.program.graph import parse_graph
from sharded_infer.towers.program.json_element import Element
from sharded_infer.v1 import predictor_pb2
from sharded_infer.v1.wire import message_field as field
from sharded_infer.v1.wire import varint
from tests.support.requests_by_chance import MAX_BATCH, SPEC

# Pieces of a document, how many times as many another has, and how many times as long it may take:
# a quadratic reader takes 256 times as long, and a busy machine makes it four times.
PIECES, MORE, GROWTH = 500, 16, 64
NO_TIME = 0.05  # seconds of the larger document

Make = Callable[[int], bytes]
Read = Callable[[bytes, Path], object]
READER = InputReader(SPEC, max_batch=MAX_BATCH)


def names(count: int) -> list[str]:
    return [f"n{i}" for i in range(count)]


def document(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def entries(count: int, name: str = "n{}") -> str:
    return ",".join(f'"{name.format(i)}":0' for i in range(count))


def infer(**fields: object) -> bytes:
    return document({"inputs": [], **fields})


def tensor(**fields: object) -> dict[str, object]:
    return {"name": "item", "datatype": "INT64", "shape": [1], "data": [1], **fields}


REST: dict[str, Make] = {
    "a name that comes again at the end": lambda n: b"{" + (
        entries(n) + f',"n{n - 1}":0'
    ).encode() + b"}",
    "each name twice": lambda n: f"{{{entries(n)},{entries(n)}}}".encode(),
    "lists in lists": lambda n: b'{"a":' + b"[" * n,
    "a number of many digits": lambda n: b'{"id":' + b"9" * 100 * n + b"}",
    "a fraction of many digits": lambda n: b'{"id":0.' + b"9" * 100 * n + b"}",
    "escapes": lambda n: b'{"id":"' + b"\\ud800" * n + b'"}',
    "input parameters": lambda n: infer(
        inputs=[tensor(parameters=dict.fromkeys(names(n), 0))]
    ),
    "inputs": lambda n: infer(inputs=[tensor(name=name) for name in names(n)]),
    "one input often": lambda n: infer(inputs=[tensor()] * n),
    "dimensions": lambda n: infer(inputs=[tensor(shape=[2**62] * n)]),
    "numbers, each in a list": lambda n: infer(inputs=[tensor(data=[[1]] * n)]),
    "a long name": lambda n: infer(inputs=[tensor(name="item" * 10 * n)]),
}  # fmt: skip


def of_map(number: int, count: int) -> bytes:
    return b"".join(field(number, field(1, name.encode()) + field(2, b"\x10\x01"))
                    for name in names(count))  # fmt: skip


def of_input(*, name: bytes = b"item", more: bytes = b"") -> bytes:
    return field(5, field(1, name) + field(2, b"INT64") + more)


INFER: dict[str, Make] = {
    "parameters": lambda n: of_map(4, n),
    "an input's parameters": lambda n: of_input(more=of_map(4, n)),
    "inputs": lambda n: b"".join(of_input(name=name.encode()) for name in names(n)),
    "one input often": lambda n: of_input() * n,
    "outputs": lambda n: b"".join(field(6, field(1, name.encode())) for name in names(n)),
    "contents": lambda n: field(7, b"") * n,
    "dimensions": lambda n: of_input(more=field(3, varint(2**62) * n)),
    "a long name": lambda n: of_input(name=b"item" * 10 * n),
    "unknown fields": lambda n: b"\x78\x01" * n,
}


def predict(**fields: Any) -> bytes:
    return bytes(predictor_pb2.PredictRequest(model="m", **fields).SerializeToString())


def features(each: list[str]) -> Any:
    feature = predictor_pb2.SparseFeature
    return predictor_pb2.Inputs(sparse=[feature(name=name, ids=[1]) for name in each])


PREDICT: dict[str, Make] = {
    "features": lambda n: predict(candidates=features(names(n))),
    "one feature often": lambda n: predict(candidates=features(["item"] * n)),
    "ids": lambda n: predict(user=predictor_pb2.Inputs(
        sparse=[predictor_pb2.SparseFeature(name="item", ids=[1] * n)])),
    "ids one by one": lambda n: field(7, field(1, field(1, b"item") + b"\x15\1\0\0\0" * n)),
    "a long name": lambda n: predict(candidates=features(["item" * 10 * n])),
}  # fmt: skip


def tables(each: list[str], **more: object) -> list[dict[str, object]]:
    return [{"name": name, "rows": 1, "dim": 1, **more} for name in each]


def manifest(spec: dict[str, object], stored: list[str]) -> bytes:
    record = {"bytes": 1, "sha256": "0" * 64}
    piece = {"file": "t", "entry": "e", "first_row": 0, "rows": 1}
    golden = {"file": "g", "samples": 1, "max_score_diff": 0.0, "allowed_score_diff": 1.0}
    output = {"name": "score", "width": None}
    return document({
        "format_version": 1, "model": "m", "version": 1, "created_at": "", "producer": {},
        "spec": {"name": "m", **spec},
        "tables": tables(stored, row_format="int8", pieces=[piece]),
        "tower": {"file": "p", "precision": "fp32", "outputs": [output]},
        "golden": golden, "plans": {"cpu:1": "plan"},
        "files": dict.fromkeys(("t", "p", "g", "plan"), record),
    })  # fmt: skip


MANIFEST: dict[str, Make] = {
    "tables": lambda n: manifest({"tables": tables(names(n))}, names(n)),
    "one table often": lambda n: manifest({"tables": tables(["t"] * n)}, names(n)),
    "unknown fields": lambda n: manifest({"tables": tables(names(n), odd=1)}, names(n)),
    "overrides": lambda n: manifest(
        {"tables": tables(names(n)),
         "quantization": {"overrides": {f"{name}*": "int8" for name in names(n)}}}, names(n)),
    "features": lambda n: manifest({"tables": tables(["t"], features=names(n))}, ["t"]),
    "outputs": lambda n: manifest(
        {"tables": tables(["t"]), "tower": {"outputs": ["o"] * n}}, ["t"]),
}  # fmt: skip


def steps(count: int) -> bytes:
    return b".".join([b"a"] * count)


TOML: dict[str, Make] = {
    "a key of many steps": lambda n: steps(n) + b" = 1\n",
    "a table of many steps": lambda n: b"[" + steps(n) + b"]\n",
    "keys of few steps": lambda n: b"".join(steps(20) + b".k%d = 1\n" % i for i in range(n)),
    "tables": lambda n: b"".join(b"[[tables]]\nname = 'n%d'\nrows = 1\n" % i for i in range(n)),
    "one table often": lambda n: (
        b"name = 'm'\n" + b"[[tables]]\nname = 't'\nrows = 1\ndim = 1\n" * n
    ),
    "lists in lists": lambda n: b"a = " + b"[" * n,
    "a number of many digits": lambda n: b"a = " + b"9" * 100 * n + b"\n",
    "a fraction of many digits": lambda n: b"a = 1." + b"9" * 100 * n + b"\n",
}


def plan(shards: list[tuple[int, int, int, int]], replicated: list[str]) -> bytes:
    fields = ("first_row", "last_row", "first_column", "last_column")
    device = {"kind": "cpu"}
    return document({
        "topology": {"name": "cpu:1", "devices": [device]},
        "shards": [{"table": "t", "rank": 0, **dict(zip(fields, s, strict=True))} for s in shards],
        "replicated": replicated,
    })  # fmt: skip


PLAN: dict[str, Make] = {
    "columns": lambda n: plan([(0, 1, i, i + 1) for i in range(n)], []),
    "rows": lambda n: plan([(i, i + 1, 0, 1) for i in range(n)], []),
    "steps": lambda n: plan([(i, n, i, i + 1) for i in range(n)], []),
    "replicated tables": lambda n: plan([], names(n)),
}


STORED = StoredTable("t", 1 << 20, 1 << 20, RowFormat.INT8)
LABELS: dict[str, Make] = {
    "versions before": lambda n: document({"history": {"a": [1] * n}}),
    "labels of before": lambda n: document({"history": {name: [1] for name in names(n)}}),
    "lists in lists": lambda n: b"[" * n,
}
SAMPLES: dict[str, Make] = {
    "objects": lambda n: b'{"item": 1}\n' * n,
    "unknown names": lambda n: b"".join(b'{"n%d": 1}\n' % i for i in range(n)),
    "lists in lists": lambda n: b"[" * n,
    "ids": lambda n: document({"item": [1] * n}),
}
TSV: dict[str, Make] = {
    "columns that come twice": lambda n: "\t".join(names(n) * 2).encode(),
    "ids": lambda n: b"item\n" + b"1," * n + b"1",
}


def read_samples(read: Callable[[str], Any]) -> Read:
    return lambda text, _: batch_samples(SPEC, read(text.decode()))


def program(inputs: list[str], **graph: object) -> bytes:
    given = [{"as_tensor": {"name": name}} for name in inputs]
    return document({
        "schema_version": {"major": 8},
        "graph_module": {
            "graph": {"nodes": [], "inputs": given, "outputs": [], **graph},
            "signature": {
                "input_specs": [{"user_input": {"arg": argument}} for argument in given],
                "output_specs": [],
            },
        },
    })  # fmt: skip


PROGRAM: dict[str, Make] = {
    "inputs whose sizes are not told": lambda n: program(
        names(n), tensor_values={name: {"sizes": []} for name in names(n)}
    ),
    "a long name": lambda n: program(["a" * 100 * n]),
    "a long name of many sizes": lambda n: program(
        ["a" * 10 * n], tensor_values={"a" * 10 * n: {"sizes": [{"as_int": 1}] * n}}
    ),
    "lists in lists": lambda n: b"[" * n,
}


def table_file(header: object) -> bytes:
    text = document(header)
    return len(text).to_bytes(8, "little") + text


def entry(begin: int, end: int) -> dict[str, object]:
    return {"dtype": "U8", "shape": [1, 1], "data_offsets": [begin, end]}


TABLE_FILE: dict[str, Make] = {
    "tensors": lambda n: table_file({f"n{i}": entry(i, i + 1) for i in range(n)}) + bytes(n),
    "tensors from last to first": lambda n: table_file(
        {f"n{i}": entry(n - i - 1, n - i) for i in range(n)}
    ) + bytes(n),
    "lists in lists": lambda n: (n + 8).to_bytes(8, "little") + b"[" * n + bytes(8),
}  # fmt: skip
REPORT: dict[str, Make] = {
    "unknown fields": lambda n: document(dict.fromkeys(names(n), 0)),
    "tables": lambda n: document({"tables": [{"name": name} for name in names(n)]}),
}
INDEX: dict[str, Make] = {
    "weights": lambda n: document({"weight_map": dict.fromkeys(names(n), "a.safetensors")}),
    "files": lambda n: document({"weight_map": {name: f"{name}.bin" for name in names(n)}}),
}


def read_infer(message: bytes, _: Path) -> None:
    with suppress(ShardedInferError):
        header_of(parse_request(message)).output_positions(SPEC.tower.outputs)
    READER.read_message(message)


def read_rest(text: bytes, _: Path) -> None:
    request = read_document("m", "", text, len(text))
    with suppress(ShardedInferError):
        request.header().output_positions(SPEC.tower.outputs)
    shared = RequestTensors(None)
    READER.rewritten(request.message(READER, shared), shared)


def read_control(body: bytes, _: Path) -> None:
    class Told:
        def load(self, *_: object) -> None:
            return

    request = HttpRequest("POST", "", "", {}, body)
    api = ModelApi(Told())  # type: ignore[arg-type]
    api.answer("RepositoryModelLoad", {"model": "m"}, request, lambda: True)


def at(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


READERS: dict[str, tuple[dict[str, Make], Read]] = {
    "a predict request over REST": (REST, read_rest),
    "a control request over REST": (REST, read_control),
    "ModelInferRequest": (INFER, read_infer),
    "PredictRequest": (PREDICT, lambda m, _: READER.read_message(m, form=MessageFormat.PREDICT)),
    "a manifest": (MANIFEST, lambda text, _: parse_manifest(text, "manifest.json")),
    "a spec": (TOML, lambda text, path: load_spec(at(path / "model.toml", text))),
    "a topology": (TOML, lambda text, path: load_topology(at(path / "topology.toml", text))),
    "a configuration": (
        TOML,
        lambda text, path: read_settings(
            SETTINGS, flags={}, environment={}, file=at(path / "server.toml", text)
        ),
    ),
    "a plan": (PLAN, lambda text, _: check_plan(load_plan(text), {"t": STORED})),
    "labels": (LABELS, lambda text, _: parse_labels(text, "labels.json")),
    "samples in JSON": (SAMPLES, read_samples(read_json)),
    "samples in TSV": (TSV, read_samples(read_tsv)),
    "a tower's program": (PROGRAM, lambda text, _: parse_graph(Element.parse(text, "model.json"))),
    "a table file": (TABLE_FILE, lambda data, path: map_table_file(at(path / "t", data))),
    "a report": (REPORT, lambda text, _: report_from_fields(json.loads(text))),
    "a checkpoint's index": (
        INDEX,
        lambda text, path: ShardedSafetensorsSource(at(path / "i.json", text)),
    ),
}
CASES = [(reader, case) for reader, (documents, _) in READERS.items() for case in documents]


def seconds(read: Read, data: bytes, folder: Path, enough: float) -> float:
    """The least processor time of several readings, or of the first that is short enough."""
    least = float("inf")
    # What else this process holds, its collector looks through as often as objects are made.
    gc.disable()
    try:
        for _ in range(5):
            began = process_time()
            with suppress(ShardedInferError):
                read(data, folder)
            least = min(least, process_time() - began)
            if least < enough:
                break
    finally:
        gc.enable()
    return least


@pytest.mark.parametrize(("reader", "case"), CASES)
def test_reading_takes_time_in_proportion_to_size(reader: str, case: str, tmp_path: Path) -> None:
    documents, read = READERS[reader]
    make = documents[case]
    few = seconds(read, make(PIECES), tmp_path, 0.0)
    many = seconds(read, make(PIECES * MORE), tmp_path, max(NO_TIME, GROWTH * few))
    assert many < max(NO_TIME, GROWTH * few), f"{many:.3f} s after {few:.3f} s"
