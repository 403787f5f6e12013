"""Towers that somebody made to run code, to exhaust memory or to crash their reader."""

import contextlib
import io
import json
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sharded_infer.errors import TowerError
from sharded_infer.specs.precision import Precision
from sharded_infer.specs.sequence_input import SequenceInput
from sharded_infer.towers.program.archive import pack_program, read_program
from sharded_infer.towers.tower import Tower, export_tower
from tests.quant.sources.test_checkpoint import Bomb

MODEL = "archive/models/model.json"
WEIGHTS = "archive/data/weights/model_weights_config.json"
CONSTANTS = "archive/data/constants/model_constants_config.json"
SAMPLE_INPUTS = "archive/data/sample_inputs/model.pt"
WEIGHT = "archive/data/weights/weight_0"

Entries = dict[str, bytes]


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 4)
        self.register_buffer("order", torch.tensor([3, 1, 0, 2]), persistent=False)
        self.order: torch.Tensor

    def forward(self, embeddings: torch.Tensor) -> torch.Tensor:
        hidden = self.layer(embeddings).view(embeddings.shape[0], 4)
        return torch.cat(hidden.index_select(1, self.order).split(2, 1), 1)


@pytest.fixture(scope="module")
def honest() -> Entries:
    return exported(Small())


def written(entries: Entries, path: Path, method: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, data in entries.items():
            archive.writestr(name, data)
    return path


def edited(entries: Entries, name: str, edit: Callable[[Any], object]) -> Entries:
    document = json.loads(entries[name])
    edit(document)
    return entries | {name: json.dumps(document).encode()}


def graph_of(document: dict[str, Any]) -> dict[str, Any]:
    graph: dict[str, Any] = document["graph_module"]["graph"]
    return graph


def with_last_node(entries: Entries, target: str, **arguments: object) -> Entries:
    """The entries with another operator in the last node; with other arguments, if any come."""

    def edit(document: dict[str, Any]) -> None:
        node = graph_of(document)["nodes"][-1]
        node["target"] = target
        if arguments:
            node["inputs"] = [
                {"name": name, "arg": argument, "kind": 1} for name, argument in arguments.items()
            ]

    return edited(entries, MODEL, edit)


def exported(tower: nn.Module, *, width: int = 4, **sequences: SequenceInput) -> Entries:
    program = export_tower(
        tower,
        dense={},
        embedding_width=width,
        sequences=sequences,
        outputs=["score"],
        precision=Precision.FP32,
    )
    with zipfile.ZipFile(io.BytesIO(pack_program(program))) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def refused(entries: Entries, path: Path, match: str) -> None:
    with pytest.raises(TowerError, match=match) as caught:
        read_program(written(entries, path))
    assert str(caught.value).startswith(str(path))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tower.pt2"


def creating(trace: Path) -> str:
    return f"__import__('pathlib').Path({str(trace)!r}).touch()"


def scores(path: Path) -> torch.Tensor:
    (score,) = read_program(path)(torch.ones(2, 4))
    assert isinstance(score, torch.Tensor)
    return score


def test_the_honest_archive_is_read(honest: Entries, path: Path) -> None:
    torch.testing.assert_close(scores(written(honest, path)), Small()(torch.ones(2, 4)))


def test_operators_are_checked_before_anything_is_built(honest: Entries, path: Path) -> None:
    def edit(document: dict[str, Any]) -> None:
        graph_of(document)["nodes"][-1]["target"] = "os.system"
        graph_of(document)["nodes"][0]["inputs"] = "nonsense"

    entries = edited(honest, MODEL, edit)
    del entries[WEIGHT], entries[WEIGHTS]
    refused(entries, path, "operator 'os.system' is not allowed")


def test_a_pickle_among_the_sample_inputs_is_not_unpickled(honest: Entries, path: Path) -> None:
    trace = path.parent / "trace"
    buffer = io.BytesIO()
    torch.save(Bomb(trace), buffer)
    written(honest | {SAMPLE_INPUTS: buffer.getvalue()}, path)
    scores(path)
    assert not trace.exists()
    # The attack is real: this is what torch's own reader does with the entry.
    torch.load(io.BytesIO(buffer.getvalue()), weights_only=False)
    assert trace.exists()


def test_a_weight_stored_as_a_pickle_is_refused(honest: Entries, path: Path) -> None:
    trace = path.parent / "trace"

    def edit(document: dict[str, Any]) -> None:
        next(iter(document["config"].values()))["use_pickle"] = True

    entries = edited(honest, WEIGHTS, edit) | {WEIGHT: pickle.dumps(Bomb(trace))}
    refused(entries, path, "stored as a pickle")
    assert not trace.exists()


def test_nothing_that_a_program_says_is_evaluated(honest: Entries, path: Path) -> None:
    trace = path.parent / "trace"
    code = creating(trace)

    def with_expressions(value: object) -> object:
        if isinstance(value, dict):
            return {
                key: code if key == "expr_str" else with_expressions(item)
                for key, item in value.items()
            }
        return [with_expressions(item) for item in value] if isinstance(value, list) else value

    document: Any = with_expressions(json.loads(honest[MODEL]))
    poisoned = honest | {MODEL: json.dumps(document).encode()}
    scores(written(poisoned, path))
    assert b"__import__" in poisoned[MODEL] and not trace.exists()
    # The attack is real: torch's own reader evaluates it, whatever it makes of the result.
    with contextlib.suppress(Exception):
        torch.export.load(path)
    assert trace.exists()
    trace.unlink()
    document["guards_code"] = [code]
    document["range_constraints"] = {code: {"min_val": 1, "max_val": 2}}
    document["graph_module"]["metadata"] = {"custom": code}
    document["graph_module"]["module_call_graph"] = code
    for node in graph_of(document)["nodes"]:
        node["metadata"] = {"stack_trace": code, "custom": code}
    # Names would stand in the generated code.
    names = {
        argument["as_tensor"]["name"]
        for node in graph_of(document)["nodes"]
        for argument in node["outputs"]
        if "as_tensor" in argument
    }
    text = json.dumps(document)
    for name in names:
        text = text.replace(json.dumps(name), json.dumps(f"x\n    {code}\n    y{name}"))
    scores(written(honest | {MODEL: text.encode()}, path))
    assert names and "__import__" not in str(read_program(path).code)
    assert not trace.exists()


@pytest.mark.parametrize("place", ["name", "string"])
def test_code_in_arguments_is_refused_or_a_string(place: str, honest: Entries, path: Path) -> None:
    trace = path.parent / "trace"

    def edit(document: dict[str, Any]) -> None:
        argument = graph_of(document)["nodes"][-1]["inputs"][-1]
        if place == "name":
            argument.update(name=f"dim={creating(trace)}", kind=2)
        else:
            argument["arg"] = {"as_string": f"'+{creating(trace)}+'"}

    path = written(edited(honest, MODEL, edit), path)
    if place == "name":
        with pytest.raises(TowerError, match="expected an argument of"):
            read_program(path)
    else:
        with pytest.raises(RuntimeError):
            scores(path)
    assert not trace.exists()


Change = Callable[[Entries], Entries]
ARGUMENT = {"name": "v", "graph": {}, "class_fqn": "os.system"}
NAMED = {"inputs": ["embeddings"], "outputs": ["score"]}
SEQUENCE = {"width": 4, "max_length": 9, "fixed": False, "dense": {}}


def of_model(edit: Callable[[Any], object]) -> Change:
    return lambda entries: edited(entries, MODEL, edit)


def of_argument(argument: object) -> Change:
    """The last argument of the last node."""
    return of_model(lambda d: graph_of(d)["nodes"][-1]["inputs"][-1].update(arg=argument))


def of_names(names: object) -> Change:
    said = json.dumps({"sharded_infer": names})
    return of_model(lambda d: d["graph_module"]["metadata"].update(custom=said))


def of_sequence(**changed: object) -> Change:
    return of_names(NAMED | {"sequences": {"a": SEQUENCE | changed}})


def of_weight(**meta: object) -> Change:
    def edit(document: dict[str, Any]) -> None:
        document["config"]["tower.layer.weight"]["tensor_meta"].update(meta)

    return lambda entries: edited(entries, WEIGHTS, edit)


def in_training(flag: object) -> Change:
    def change(entries: Entries) -> Entries:
        tensor = graph_of(json.loads(entries[MODEL]))["inputs"][-1]
        arguments = {"input": tensor, "p": {"as_float": 0.5}, "train": flag}
        return with_last_node(entries, "torch.ops.aten.dropout.default", **arguments)

    return change


def multiplied(entries: Entries) -> Entries:
    factors = {"a": {"as_string": "x"}, "b": {"as_int": 2**40}}
    return with_last_node(entries, "_operator.mul", **factors)


def signature_of(document: dict[str, Any]) -> Any:
    return document["graph_module"]["signature"]


def undefined_output(document: dict[str, Any]) -> None:
    output = {"as_tensor": {"name": "nowhere"}}
    graph_of(document)["outputs"] = [output]
    signature_of(document)["output_specs"] = [{"user_output": {"arg": output}}]


def mutated_buffer(document: dict[str, Any]) -> None:
    specs = signature_of(document)["output_specs"]
    argument = specs[0]["user_output"]["arg"]["as_tensor"]
    specs[0] = {"buffer_mutation": {"arg": argument, "buffer_name": "order"}}


def custom_input(document: dict[str, Any]) -> None:
    custom = {"custom_obj": {"arg": ARGUMENT, "custom_obj_name": "v"}}
    signature_of(document)["input_specs"][0] = custom


def missing_weight(document: dict[str, Any]) -> None:
    for spec in signature_of(document)["input_specs"]:
        if "parameter" in spec:
            spec["parameter"]["parameter_name"] = "../../etc/passwd"


OPERATORS = (
    "torch.ops.aten.from_file.default",
    "torch.ops.aten.empty.memory_format",
    "torch.ops.aten.relu_.default",
    # Export rewrites these: a reader never has to bound their steps, windows and sizes.
    "torch.ops.aten.gru.input",
    "torch.ops.higher_order.while_loop",
    "torch.ops.fbgemm.anything.default",
    "os.system",
    "builtins.eval",
    "_operator.pow",
    "torch.ops.aten.linear.__class__",
    "",
)
ODD: list[tuple[Change, str]] = [
    *(
        (lambda e, name=name: with_last_node(e, name), f"operator {name!r} is not allowed")
        for name in OPERATORS
    ),
    (of_argument({"as_graph": ARGUMENT}), "kind 'as_graph' is not allowed"),
    (of_argument({"as_sym_int": {"as_expr": {"expr_str": "1"}}}), "one of as_int, as_name"),
    (of_argument({"as_tensor": {"name": "nowhere"}}), "the name 'nowhere' is not defined"),
    (of_argument({"as_scalar_type": 9}), "expected a dtype among"),
    (of_argument({"as_layout": 1}), "expected the strided layout"),
    (of_argument({"as_memory_format": 9}), "expected a memory format among"),
    (of_argument({"as_device": {"type": "cuda", "index": 0}}), "expected the device 'cpu'"),
    (of_argument({"as_int": 2**64}), "an integer of at most 64 bits"),
    (of_argument({"as_int": True}), "expected an integer"),
    (of_argument({"as_int": 1, "as_bool": True}), "exactly one member"),
    (of_argument({}), "exactly one member"),
    (of_argument("as_int"), "expected an object"),
    # Operators of Python get numbers alone, and no operator trains.
    (multiplied, "expected a positional number"),
    *(
        (in_training(flag), r"train=False \(inference\)|true or false")
        for flag in ({"as_bool": True}, {"as_bool": 1}, {"as_none": True})
    ),
    (of_model(lambda d: graph_of(d)["nodes"].append(graph_of(d)["nodes"][-1])), "defined twice"),
    (of_model(lambda d: graph_of(d)["nodes"].reverse()), "is not defined"),
    (of_model(undefined_output), "output 'nowhere' is not defined"),
    (of_model(mutated_buffer), "an output of kind 'buffer_mutation' is not allowed"),
    (of_model(custom_input), "an input of kind 'custom_obj' is not allowed"),
    (of_model(lambda d: signature_of(d)["input_specs"].reverse()), "not those of its signature"),
    (of_model(lambda d: d["schema_version"].update(major=9)), "version 8 of torch.*, got 9"),
    (of_model(missing_weight), "no weight '../../etc/passwd'"),
    (of_model(dict.clear), "the member 'schema_version'"),
    (of_names({"inputs": ["a", "b"], "outputs": ["score"]}), "expected 1 distinct names"),
    (of_names({"inputs": ["embeddings"]}), "the member 'outputs'"),
    (of_names([]), "the member 'inputs'"),
    (of_names(NAMED | {"sequences": ["a"]}), "sequences: expected an object"),
    (of_names(NAMED | {"sequences": {"a": {}}}), "a: expected an object with the member 'width'"),
    (of_sequence(width=0), "width: expected a number of 1"),
    (of_sequence(max_length=2**64), "at most 64 bits"),
    (of_sequence(fixed=1), "fixed: expected true or false"),
    (of_sequence(dense={"b": "1"}), "b: expected an integer"),
    (of_sequence(ids="b"), "ids: expected an array"),
    (of_sequence(ids=[1]), r"ids\[0\]: expected a string"),
    (of_weight(dtype=9), "expected a dtype among"),
    (of_weight(layout=1), "expected the strided layout"),
    (of_weight(sizes=[{"as_int": 5}, {"as_int": 4}]), "needs 20 elements, its entry holds 16"),
    (of_weight(strides=[{"as_int": 2**40}, {"as_int": 1}]), "its entry holds 16"),
    (of_weight(strides=[{"as_int": -4}, {"as_int": 1}]), "not negative"),
    (of_weight(storage_offset={"as_int": 1}), "needs 17 elements"),
    (of_weight(sizes=[{"as_int": 16}]), "as many strides as sizes"),
    (of_weight(sizes=[{"as_expr": {"expr_str": "16"}}, {"as_int": 1}]), "a plain integer"),
    (of_weight(sizes=[{"as_int": 2**62}] * 2, strides=[{"as_int": 0}] * 2), "not a tensor"),
    (of_weight(dtype=12), "neither 0 nor 1"),
    *(
        (
            lambda e, gone=gone: {name: data for name, data in e.items() if name != gone},
            f"no entry {gone.removeprefix('archive/')!r}",
        )
        for gone in (MODEL, WEIGHTS, CONSTANTS, WEIGHT, "archive/byteorder")
    ),
    (lambda _: {}, "no entry|root folder"),
    (lambda e: e | {"archive/byteorder": b"big"}, "little-endian"),
    (lambda e: e | {WEIGHT: bytes(60)}, "16 elements, its entry holds 15"),
    (lambda e: e | {WEIGHT: bytes(63)}, "63 bytes cannot hold whole"),
    (lambda e: e | {"other/models/model.json": b"{}"}, "one root folder"),
    (lambda e: e | {MODEL: bytes(2**26 + 1)}, "at most 67108864 are read"),
    (lambda e: e | {MODEL: b"[" * 500_000}, "not a JSON document"),
    (lambda e: e | {MODEL: b"\xff\xfe"}, "not a JSON document"),
    (lambda e: e | {MODEL: b"9" * 10_000}, "not a JSON document|expected an obj"),
    (lambda e: e | {MODEL: b"[]"}, "expected an object"),
]


@pytest.mark.parametrize(("change", "match"), ODD)
def test_an_odd_archive_is_refused(change: Change, match: str, honest: Entries, path: Path) -> None:
    refused(change(honest), path, match)


def nested(depth: int) -> str:
    """A tree of so many tuples in tuples, as torch writes them."""
    inner = '{"type": null, "context": null, "children_spec": []}'
    opening = '{"type": "builtins.tuple", "context": "null", "children_spec": ['
    return f"[1, {opening * depth}{inner}{']}' * depth}]"


def test_a_tree_of_any_depth_says_no_names(honest: Entries, path: Path) -> None:
    def edit(document: dict[str, Any]) -> None:
        document["graph_module"]["metadata"] = {"custom": "[" * 100_000}
        signature = document["graph_module"]["module_call_graph"][0]["signature"]
        signature["in_spec"] = signature["out_spec"] = nested(5000)

    scores(written(edited(honest, MODEL, edit), path))


def test_what_is_not_a_zip_is_refused(honest: Entries, path: Path) -> None:
    for data in (b"", b"PK", b"not a zip archive", pickle.dumps({}), honest[MODEL]):
        path.write_bytes(data)
        with pytest.raises(TowerError, match="not a readable zip archive"):
            read_program(path)


def test_every_truncation_is_refused(honest: Entries, path: Path) -> None:
    data = written(honest, path).read_bytes()
    for size in range(0, len(data), 997):
        path.write_bytes(data[:size])
        with pytest.raises(TowerError):
            read_program(path)


def test_altered_bytes_are_refused_or_change_nothing_else(honest: Entries, path: Path) -> None:
    data = written(honest, path).read_bytes()
    generator = torch.Generator().manual_seed(0)
    for position in torch.randint(len(data), (300,), generator=generator).tolist():
        altered = bytearray(data)
        altered[position] ^= 0xFF
        path.write_bytes(altered)
        # Bytes of the entries have a checksum; some of the directory's nobody reads.
        try:
            score = scores(path)
        except TowerError:
            continue
        torch.testing.assert_close(score, Small()(torch.ones(2, 4)))


def test_a_compressed_bomb_is_refused_before_it_is_inflated(honest: Entries, path: Path) -> None:
    written(honest | {MODEL: bytes(50_000_000)}, path, zipfile.ZIP_DEFLATED)
    with pytest.raises(TowerError, match="is compressed; entries must be stored"):
        read_program(path)


def test_an_entry_that_claims_more_than_there_is_is_refused(honest: Entries, path: Path) -> None:
    data = written(honest, path).read_bytes()
    claimed = (2**31).to_bytes(4, "little")
    # In the central directory, both sizes stand 26 bytes before the entry's name.
    at = data.rindex(WEIGHT.encode()) - 26
    path.write_bytes(data[:at] + claimed + claimed + data[at + 8 :])
    with pytest.raises(TowerError, match="the entries claim"):
        read_program(path)


# zipfile itself warns about the archive that this test makes.
@pytest.mark.filterwarnings("ignore:Duplicate name:UserWarning")
def test_two_entries_of_one_name_are_refused(honest: Entries, path: Path) -> None:
    written(honest, path)
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr(MODEL, honest[MODEL])
    with pytest.raises(TowerError, match=r"several entries 'archive/models/model\.json'"):
        read_program(path)


class OfSequence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Embedding(9, 4)

    def forward(self, history: torch.Tensor, history_lengths: torch.Tensor) -> torch.Tensor:
        places = self.places(torch.arange(history.shape[1]))
        return (history * places).sum((1, 2)) + history_lengths


@pytest.fixture(scope="module")
def sequential() -> Entries:
    return exported(OfSequence(), width=0, history=SequenceInput(4, 9))


def loaded(path: Path, *, embedding_width: int = 0, **sequences: SequenceInput) -> Tower:
    return Tower.load(
        path, dense={}, embedding_width=embedding_width, sequences=sequences, outputs=["score"]
    )


def said(sequences: object) -> Callable[[dict[str, Any]], None]:
    """Changes what a program says of its sequences."""

    def edit(document: dict[str, Any]) -> None:
        names = json.loads(document["graph_module"]["metadata"]["custom"])
        names["sharded_infer"]["sequences"] = sequences
        document["graph_module"]["metadata"]["custom"] = json.dumps(names)

    return edit


def test_a_program_that_says_more_than_it_takes_is_refused(sequential: Entries, path: Path) -> None:
    written(sequential, path)
    loaded(path, history=SequenceInput(4, 5, fixed=True))
    # Its ten positions are read at their ends when it is opened, not first by a request.
    longer = said({"history": SEQUENCE | {"max_length": 10}})
    written(edited(sequential, MODEL, longer), path)
    with pytest.raises(TowerError, match=r"fails on inputs of shapes \[\[4, 10, 4\]"):
        loaded(path, history=SequenceInput(4, 10))
    written(edited(sequential, MODEL, said({"other": SEQUENCE})), path)
    with pytest.raises(TowerError, match="the sequences history, .* for the sequences other"):
        loaded(path, history=SequenceInput(4, 9))
    fixed = said({"history": SEQUENCE | {"fixed": True}})
    written(edited(sequential, MODEL, fixed), path)
    with pytest.raises(TowerError, match="for a length of 9 alone: set max_length = 9 and pad_to"):
        loaded(path, history=SequenceInput(4, 8, fixed=True))
    written(edited(sequential, MODEL, said({"history": SEQUENCE | {"ids": ["a"]}})), path)
    with pytest.raises(TowerError, match=r"ids = \[\], the program was exported for \['a'\]"):
        loaded(path, history=SequenceInput(4, 9))
    with pytest.raises(TowerError, match=r"3 inputs .*a_ids.*, the program has 2|4 inputs"):
        loaded(path, history=SequenceInput(4, 9, ids=("a",)))


class OfAges(nn.Module):
    def forward(
        self, history: torch.Tensor, a_ids: torch.Tensor, **_: torch.Tensor
    ) -> torch.Tensor:
        return torch.einsum("blw,bl->b", history, a_ids.flatten(1))


def test_a_program_that_takes_numbers_where_it_says_ids_is_refused(path: Path) -> None:
    entries = exported(OfAges(), width=0, history=SequenceInput(4, 9, dense={"a_ids": 1}))
    written(edited(entries, MODEL, said({"history": SEQUENCE | {"ids": ["a"]}})), path)
    with pytest.raises(TowerError, match="fails on inputs of shapes .*Float but found Long"):
        loaded(path, history=SequenceInput(4, 9, ids=("a",)))


class OfNumbers(nn.Module):
    def forward(self, embeddings: torch.Tensor) -> torch.Tensor:
        return embeddings.sum(1) + torch.zeros(11, 2).sum()


def test_a_tensor_that_takes_all_memory_is_refused_before_it_is_made(path: Path) -> None:
    entries = exported(OfNumbers())
    loaded(written(entries, path), embedding_width=4)
    model = entries[MODEL].replace(b'"as_ints":[11,2]', b'"as_ints":[%d,2]' % (2**41))
    assert model != entries[MODEL]
    written(entries | {MODEL: model}, path)
    words = f"operator aten.zeros.default makes a tensor .*at most {2**30}"
    with pytest.raises(TowerError, match=words):
        loaded(path, embedding_width=4)


class OfCodes(nn.Module):
    def forward(self, embeddings: torch.Tensor) -> torch.Tensor:
        zeros = torch.zeros_like(embeddings, memory_format=torch.preserve_format)
        return (embeddings.to(torch.float64) + zeros).to(torch.float32).sum(1)


@pytest.mark.parametrize(
    ("kind", "words"),
    [("as_memory_format", "memory_format as a memory_format"), ("as_scalar_type", "as a dtype")],
)
def test_a_number_is_no_code(kind: str, words: str, path: Path) -> None:
    # At some numbers torch ends the process.
    entries = exported(OfCodes())
    loaded(written(entries, path), embedding_width=4)
    model = entries[MODEL].replace(f'{{"{kind}":'.encode(), b'{"as_int":')
    assert model != entries[MODEL]
    written(entries | {MODEL: model}, path)
    with pytest.raises(TowerError, match=words):
        loaded(path, embedding_width=4)
