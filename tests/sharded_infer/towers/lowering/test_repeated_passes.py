"""Runs passes twice in a row, where a tower's loading and its split run them once.

The second time there is nothing left to do, and no pass takes a name that is taken.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from kernels.machine import MAX_INSTRUCTION_SET
from kernels.product import product_dtypes
from sharded_infer.specs.precision import Precision
from sharded_infer.specs.sequence_input import SequenceInput
from sharded_infer.towers.lowering.packing import pack_products, packable_dtypes
from sharded_infer.towers.program.archive import write_program
from sharded_infer.towers.program.tower_inputs import TowerInputs
from sharded_infer.towers.split.parts import Run
from sharded_infer.towers.split.user_program import UserInputs
from sharded_infer.towers.tower import Tower, export_tower
from tests.sharded_infer.towers import sequence_towers
from tests.sharded_infer.towers.split import ranking_towers
from tests.sharded_infer.zoo import test_sequence_towers as zoo

_aten = torch.ops.aten
# By the module that runs them.
PASSES: Final[Mapping[str, tuple[str, ...]]] = MappingProxyType(
    {
        "sharded_infer.towers.tower": (
            *("compute_in_fp32", "fold_weights", "drop_whole_slices", "multiply_pointwise"),
            *("emulate_tf32", "pack_int8_products", "pack_products", "fuse_attention"),
            *("fuse_steps", "join_crosses"),
        ),
        "sharded_infer.towers.split.user_program": (
            *("remove_padding", "select_biases", "fuse_attention", "use_canonical_layout"),
            *("select_rows", "divide_products", "join_heads", "fuse_row_steps", "join_passes"),
        ),
        "sharded_infer.towers.split.splitting": (
            *("fuse_attention", "fuse_pair_layers", "fuse_steps", "join_crosses"),
            *("keep_columns", "fuse_row_steps", "call_functions"),
        ),
    }
)
# They return what they have looked at, changed or not.
COUNTING: Final = ("emulate_tf32", "use_canonical_layout")

UserShare = tuple[frozenset[str], tuple[Run, ...]]


class Described(NamedTuple):
    """A tower and its inputs.

    Attributes:
        user: the user's inputs, and columns of the embeddings; None: none are.
    """

    make: Callable[[], nn.Module]
    inputs: TowerInputs
    user: UserShare | None = None


class Attended(sequence_towers.Ranker):
    """torch's attention with one packed weight, and a layer written as a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(sequence_towers.DIM, 2, batch_first=True)
        self.layer = nn.Conv1d(sequence_towers.DIM, sequence_towers.DIM, 1)

    def state(self, history: Tensor, lengths: Tensor, age: Tensor, candidate: Tensor) -> Tensor:
        # An empty history attends to its first row, which is zeros.
        padding = ~sequence_towers.used(history, lengths.clamp(min=1))
        states, _ = self.attention(
            history, history, history, key_padding_mask=padding, need_weights=False
        )
        states = self.layer(states.transpose(1, 2)).relu().transpose(1, 2)
        return sequence_towers.last_of(states, lengths) * candidate


def of_zoo(architecture: str) -> Described:
    """A sequence tower of the zoo, whose history is the user's."""
    dense = dict.fromkeys(zoo.companions(architecture), 1)
    width = sum(zoo.pooled_dims(architecture))
    sequences = {"history": SequenceInput(zoo.WIDTH, zoo.MAX_LENGTH, dense=dense)}
    user = frozenset({"history"}), (Run(False, width),)
    return Described(lambda: zoo.built(architecture), TowerInputs({}, width, sequences), user)


DCNV2: Final = Described(
    ranking_towers.dcnv2, TowerInputs({"dense": ranking_towers.DENSE}, ranking_towers.WIDTH, {})
)
ATTENDED: Final = Described(
    Attended,
    TowerInputs(sequence_towers.DENSE, sequence_towers.WIDTH, sequence_towers.HISTORY),
    (
        frozenset({"user", "history"}),
        (Run(True, sequence_towers.USER), Run(False, sequence_towers.DIM)),
    ),
)
# What is exported, in which precision, and the options of each loading.
TOWERS: Final[tuple[tuple[str, Described, Precision, tuple[dict[str, bool], ...]], ...]] = (
    ("dcnv2", DCNV2, Precision.FP32, ({}, {"tf32": True})),
    ("dcnv2", DCNV2, Precision.BF16, ({}, {"in_fp32": True})),
    ("dcnv2", DCNV2, Precision.INT8, ({}, {"in_fp32": True})),
    *((name, of_zoo(name), Precision.FP32, ({},)) for name in zoo.OPTIONS),
    ("attended", ATTENDED, Precision.FP32, ({},)),
)


@dataclass(frozen=True, slots=True)
class Repeated:
    """Results of a pass on one program.

    Attributes:
        made, again: results of its first and its second run.
        nodes, results: of the program, before and after the second run.
        replaced: names of tensors or modules replaced by a run.
    """

    name: str
    tower: str
    made: int | None
    again: int | None
    nodes: tuple[int, int]
    results: tuple[list[Tensor], list[Tensor]]
    replaced: list[str]


class Repeats:
    """Passes that are run twice.

    Attributes:
        compiled: weight dtypes of compiled products.
        found: results of each pass.
        scores: of each tower loaded this way, and loaded normally.
    """

    def __init__(self) -> None:
        self.compiled: Set[torch.dtype] = frozenset()
        self.found: list[Repeated] = []
        self.scores: dict[str, tuple[Tensor, Tensor]] = {}
        self._tower = ""
        self._inputs: dict[str, Sequence[Tensor]] = {}

    def load(self, name: str, path: Path, tower: Described, options: Mapping[str, bool]) -> None:
        inputs = tower.inputs
        self._tower = name
        self._inputs["tower"] = samples = inputs.samples(5, inputs.lengths(4))

        def scores() -> Tensor:
            loaded = Tower.load(
                path,
                dense=inputs.dense,
                embedding_width=inputs.embedding_width,
                outputs=("score",),
                sequences=inputs.sequences,
                **options,
            )
            if tower.user is not None:
                loaded.split_user(*tower.user)
            return loaded(samples[:-1], samples[-1])[0]

        once = scores()
        with pytest.MonkeyPatch.context() as changed:
            self._change(changed)
            self.scores[name] = scores(), once

    def _change(self, changed: pytest.MonkeyPatch) -> None:
        for name, passes in PASSES.items():
            module = importlib.import_module(name)
            for one in passes:
                changed.setattr(module, one, self._twice(one, getattr(module, one)))
        for kind, name in (("user", "runs"), ("pair", "pairs")):
            changed.setattr(UserInputs, name, self._recorded(kind, getattr(UserInputs, name)))

    def _twice(self, name: str, once: Callable[..., int | None]) -> Callable[..., int | None]:
        def twice(program: GraphModule, *args: Any, **options: Any) -> int | None:
            before = held(program)
            made = once(program, *args, **options)
            between, results, nodes = (
                held(program),
                self._results(program),
                len(program.graph.nodes),
            )
            again = once(program, *args, **options)
            self.found.append(
                Repeated(
                    name,
                    self._tower,
                    made,
                    again,
                    (nodes, len(program.graph.nodes)),
                    (results, self._results(program)),
                    [*replaced(before, between), *replaced(between, held(program))],
                )
            )
            return made

        return twice

    def _recorded(self, kind: str, inputs: Callable[..., Any]) -> Callable[..., Any]:
        """A method that records inputs of zeros for a program, to derive others from."""

        def given(*args: Any) -> Any:
            found = inputs(*args)
            self._inputs[kind] = [by_chance(one) for one in found[0]]
            return found

        return given

    def _results(self, program: GraphModule) -> list[Tensor]:
        names = {str(node.target) for node in program.graph.find_nodes(op="placeholder")}
        kinds = {"owners": "pair", "shared": "user"}
        kind = next((kind for name, kind in kinds.items() if name in names), "tower")
        with torch.inference_mode():
            return list(program(*self._inputs[kind]))


def by_chance(zeros: Tensor) -> Tensor:
    """Numbers in the place of zeros; lengths and owners stay."""
    generator = torch.Generator().manual_seed(zeros.numel())
    return torch.randn(zeros.shape, generator=generator) if zeros.is_floating_point() else zeros


def held(program: GraphModule) -> dict[str, object]:
    tensors = [*program.named_parameters(), *program.named_buffers()]
    return {**dict(tensors), **dict(program.named_modules())}


def replaced(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    """Names that hold something else than before, and still exist."""
    return [name for name, one in before.items() if after.get(name, one) is not one]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    paths = []
    for name, tower, precision, _ in TOWERS:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(3)
            module = tower.make().eval().requires_grad_(False)
        inputs = tower.inputs
        program = export_tower(
            module,
            dense=inputs.dense,
            embedding_width=inputs.embedding_width,
            outputs=("score",),
            sequences=inputs.sequences,
            precision=precision,
            calibration=inputs.samples(256, inputs.lengths(5)),
        )
        paths.append(tmp_path_factory.mktemp("towers") / f"{name}.pt2")
        write_program(program, paths[-1])
    return paths


@pytest.fixture(scope="module", params=["as the machine multiplies", "without compiled products"])
def repeats(request: pytest.FixtureRequest, files: list[Path]) -> Repeats:
    found = Repeats()
    with pytest.MonkeyPatch.context() as limited:
        if request.param == "without compiled products":
            limited.setenv(MAX_INSTRUCTION_SET, "baseline")
            assert not product_dtypes()
        found.compiled = product_dtypes()
        for path, (name, tower, precision, loads) in zip(files, TOWERS, strict=True):
            for options in loads:
                found.load(" ".join((name, precision, *options)), path, tower, options)
    return found


def test_a_second_run_of_a_pass_changes_neither_nodes_nor_scores(repeats: Repeats) -> None:
    for one in repeats.found:
        text = f"{one.name} of {one.tower}"
        assert one.nodes[0] == one.nodes[1], text
        for before, after in zip(*one.results, strict=True):
            torch.testing.assert_close(after, before, rtol=0, atol=0, equal_nan=True, msg=text)


def test_a_pass_finds_nothing_to_do_the_second_time(repeats: Repeats) -> None:
    found = {(one.name, one.tower) for one in repeats.found if one.again}
    assert {one for one in found if one[0] not in COUNTING} == set()


def test_a_name_holds_the_same_tensor_or_module_until_it_is_given_up(repeats: Repeats) -> None:
    assert {(one.name, one.tower): one.replaced for one in repeats.found if one.replaced} == {}


def test_a_tower_whose_passes_ran_twice_scores_as_one_whose_passes_ran_once(
    repeats: Repeats,
) -> None:
    for name, (twice, once) in repeats.scores.items():
        assert once.std() > 0, name
        torch.testing.assert_close(twice, once, rtol=0, atol=1e-6, msg=name)


def test_every_pass_was_repeated_where_it_had_something_to_do(repeats: Repeats) -> None:
    names = {name for passes in PASSES.values() for name in passes}
    assert {one.name for one in repeats.found} == names
    # What does nothing where products are in fp32 alone.
    idle = set() if repeats.compiled - {torch.float32} else {"join_crosses"}
    idle |= set() if repeats.compiled or packable_dtypes() else {"pack_products"}
    # It counts nothing.
    idle.add("compute_in_fp32")
    assert names - idle <= {one.name for one in repeats.found if one.made}


@pytest.mark.parametrize("by", ["compiled products", "oneDNN"])
def test_products_that_are_packed_later_leave_those_before_their_weights(by: str) -> None:
    compiled = product_dtypes() if by == "compiled products" else frozenset()
    if torch.float32 not in (compiled if by == "compiled products" else packable_dtypes()):
        pytest.skip(f"no {by} here")
    generator = torch.Generator().manual_seed(3)
    shapes = (5, 24), (32, 24), (16, 32), (8, 16)
    x, *weights = (torch.randn(shape, generator=generator) for shape in shapes)
    program, expected = GraphModule(nn.Module(), torch.fx.Graph()), x
    output = program.graph.output((program.graph.placeholder("x"),))
    for number, weight in enumerate(weights):
        program.register_buffer(f"weight{number}", weight)
        with program.graph.inserting_before(output):
            read = program.graph.get_attr(f"weight{number}")
            product = program.graph.call_function(_aten.linear.default, (*output.args[0], read))
        output.args = ((product,),)
        assert pack_products(program, compiled) == 1
        expected = expected @ weight.T
        torch.testing.assert_close(program(x)[0], expected, rtol=1e-5, atol=1e-5)
