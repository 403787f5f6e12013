"""The tower of a spec: from the zoo with trained weights, or a stored program."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from kernels.wording import counted
from quant.sources.checkpoint import open_weights
from quant.sources.table_weight import bare_key
from quant.sources.weight_source import TensorSource, WeightSource
from sharded_infer.errors import SpecError, TowerError, WeightsError
from sharded_infer.importing.torchrec_names import (
    bare_name,
    read_parameters,
    torchrec_keys,
    torchrec_prefixes,
)
from sharded_infer.specs.model_spec import ModelSpec, TowerSpec
from sharded_infer.towers.program.archive import read_program
from sharded_infer.towers.program.graph import NAMES, WIDTH
from sharded_infer.towers.program.names import ProgramNames, check_sequences
from sharded_infer.towers.program.tower_inputs import EMBEDDINGS, TowerInputs
from sharded_infer.zoo.history import SequenceSizes
from sharded_infer.zoo.registry import build_tower

_DEFAULT_PREFIX = TowerSpec().weights


class ProgramTower(nn.Module):
    """A stored program as a module with named inputs; in the spec's order unless it names them."""

    def __init__(
        self,
        program: nn.Module,
        inputs: tuple[str, ...],
        outputs: tuple[str, ...],
        names_inputs: bool = True,
    ):
        super().__init__()
        self.program = program
        self.names_inputs = names_inputs
        self._inputs = inputs
        self._outputs = outputs

    def forward(self, **inputs: Tensor) -> dict[str, Tensor]:
        """Run the program; outputs by name."""
        results = self.program(*(inputs[name] for name in self._inputs))
        return dict(zip(self._outputs, results, strict=True))


def load_tower(spec: ModelSpec, source: WeightSource, folder: Path) -> nn.Module:
    """Build the tower of a spec that has an architecture or a program.

    `source` holds the zoo tower's parameters under `tower.weights`, or those of TorchRec's DLRM or
    DLRM_DCN under `tower.weights` or, if that is the default, under any prefix. The program's path
    is relative to `folder`.

    Raises:
        SpecError: the spec names no tower, or sizes that the architecture refuses.
        WeightsError: a parameter of the tower is missing or has another shape.
        TowerError: a program is unreadable, must not be loaded or differs from the spec.
    """
    described = spec.tower
    if described.program is not None:
        path = folder / described.program
        if not path.is_file():
            raise TowerError(f"tower program {path}: no such file")
        program = read_program(path, follow=True)
        inputs, outputs = _check_program(program, path, spec)
        names: ProgramNames = program.meta[NAMES]
        return ProgramTower(program, inputs, outputs, names.inputs is not None)
    if described.architecture is None:
        raise SpecError("tower: expected an architecture of the zoo, or a program's file")
    tower = build_tower(
        described.architecture,
        dense_inputs=spec.dense.inputs,
        feature_dims=[feature.table.dim for feature in spec.features],
        options=described.options,
        sequences={
            name: SequenceSizes(
                tuple(f.table.dim for f in spec.sequence_features if f.sequence == name),
                one.max_length,
                one.dense,
            )
            for name, one in spec.sequences.items()
        },
    )
    wanted = tower.state_dict()
    prefix = _torchrec_prefix(wanted, source, described.weights)
    if prefix is None:
        tower.load_state_dict(_parameters(wanted, source, described.weights))
    else:
        tower.load_state_dict(_torchrec_parameters(wanted, source, prefix))
    return tower


def another_tower(spec: ModelSpec, path: Path) -> nn.Module:
    """Read a replacement tower for a published version's spec; errors as `load_tower`.

    `path` is a `.pt2` program, or a checkpoint with parameters of the spec's architecture;
    SpecError if it has none.
    """
    if path.suffix == ".pt2":
        tower = replace(spec.tower, architecture=None, options={}, program=path.name)
        return load_tower(replace(spec, tower=tower), TensorSource({}), path.parent)
    if spec.tower.architecture is None:
        raise SpecError(
            f"{path}: expected a .pt2 program: the model has no architecture of the zoo"
        )
    return load_tower(spec, open_weights(path), path.parent)


def _check_program(
    program: GraphModule, path: Path, spec: ModelSpec
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Compare a program with the spec, before torch fails on a difference.

    Returns its input and output names in its own order; named ones may differ from the spec's
    order.
    """
    (output,) = program.graph.find_nodes(op="output")
    found, outputs = len(output.args[0]), spec.tower.outputs
    if found != len(outputs):
        raise TowerError(
            f"tower program {path}: it has {counted(found, 'output')}, tower.outputs names "
            f"{len(outputs)} ({', '.join(outputs)})"
        )
    placeholders = program.graph.find_nodes(op="placeholder")
    taken = TowerInputs(spec.dense.inputs, spec.embedding_width, spec.tower_sequences)
    described = "dense.inputs, the sequences" if taken.sequences else "dense.inputs"
    wanted = taken.names
    if not taken.embedding_width and len(placeholders) == len(wanted) - 1:
        # A program exported by torch itself may lack embeddings of zero width.
        wanted = wanted[:-1]
    if len(placeholders) != len(wanted):
        count = len(placeholders)
        raise TowerError(
            f"tower program {path}: it has {counted(count, 'input')}, "
            f"{described} and the embeddings are {len(wanted)} ({', '.join(wanted)})"
        )
    names: ProgramNames = program.meta[NAMES]
    check_sequences(names.sequences, taken.sequences, f"tower program {path}")
    for recorded, expected, said in (
        (names.inputs, wanted, f"inputs are {{}}, {described} and the embeddings are {{}}"),
        (names.outputs, outputs, "outputs are {}, tower.outputs names {}"),
    ):
        if recorded is not None and set(recorded) != set(expected):
            difference = said.format(", ".join(recorded), ", ".join(expected))
            raise TowerError(f"tower program {path}: its {difference}")
    inputs = names.inputs or wanted
    for node, name in zip(placeholders, inputs, strict=True):
        _check_width(path, name, node.meta.get(WIDTH), taken, spec)
    if names.inputs is None:
        _refuse_alike(path, taken)
    return inputs, names.outputs or outputs


def _check_width(
    path: Path, name: str, traced: int | None, taken: TowerInputs, spec: ModelSpec
) -> None:
    """Refuse an input exported with another width, if the file declares it."""
    wanted = taken.widths.get(name)
    if traced is None or wanted is None or traced == wanted:
        return
    reason = f"its sequence says {wanted}"
    if name == EMBEDDINGS:
        reason = f"the dims of the features' tables add up to {wanted}: {spec.embedding_text}"
    elif name in taken.dense:
        reason = f"dense.inputs says {name} = {wanted}"
    raise TowerError(
        f"tower program {path}: its input for {name!r} has a width of {traced}, {reason}"
    )


def _refuse_alike(path: Path, taken: TowerInputs) -> None:
    by_width: dict[int, str] = {}
    for name, width in taken.dense.items():
        other = by_width.setdefault(width, name)
        if other != name:
            alike = f"{other!r} and {name!r} of dense.inputs are both {width} wide: they"
            raise _nameless(path, alike)
    if taken.sequences:
        raise _nameless(path, f"those of {', '.join(map(repr, taken.sequences))}")


def _nameless(path: Path, alike: str) -> TowerError:
    return TowerError(
        f"tower program {path}: it does not say its inputs' names, and {alike} could be confused. "
        "Export the module again with sharded_infer.export_tower, which records the names"
    )


def _torchrec_prefix(wanted: Mapping[str, Tensor], source: WeightSource, prefix: str) -> str | None:
    keys = set(source.keys())
    if any(prefix + name in keys for name in wanted):
        return None
    found = torchrec_prefixes(keys)
    if (bare := bare_name(prefix)) in found:
        return bare
    if prefix != _DEFAULT_PREFIX or not found:
        return None
    if len(found) > 1:
        raise WeightsError(
            f"tower: {source.description} holds TorchRec towers under the prefixes "
            f"{', '.join(map(repr, found))}; say which with the spec's tower.weights"
        )
    return found[0]


def _torchrec_parameters(
    wanted: Mapping[str, Tensor], source: WeightSource, prefix: str
) -> dict[str, Tensor]:
    keys = torchrec_keys(source.keys(), prefix)
    shapes = {name: source.shape(key) for name, key in keys.items()}

    def read(name: str) -> Tensor:
        return source.read(keys[name], 0, shapes[name][0])

    try:
        return read_parameters({n: tuple(p.shape) for n, p in wanted.items()}, shapes, read)
    except WeightsError as error:
        raise WeightsError(
            f"tower: TorchRec's, under the prefix {prefix!r} in {source.description}: {error}"
        ) from error


def _parameters(
    wanted: Mapping[str, Tensor], source: WeightSource, prefix: str
) -> dict[str, Tensor]:
    keys = set(source.keys())
    # Names below the prefixes of wrappers at the time of saving.
    bare: dict[str, list[str]] = {}
    for held in keys:
        bare.setdefault(bare_key(held), []).append(held)
    parameters = {}
    for name, parameter in wanted.items():
        key = prefix + name
        if key not in keys and len(found := bare.get(bare_key(key), [])) == 1:
            key = found[0]
        if key not in keys:
            raise WeightsError(
                f"tower: {source.description} holds no {key!r}; the prefix {prefix!r} is the "
                f"spec's tower.weights{_instead(keys)}"
            )
        if source.shape(key) != tuple(parameter.shape):
            raise WeightsError(
                f"tower: {key!r} in {source.description} is {list(source.shape(key))}, expected "
                f"{list(parameter.shape)}"
            )
        parameters[name] = source.read(key, 0, len(parameter)).to(torch.float32)
    return parameters


def _instead(keys: set[str]) -> str:
    found = torchrec_prefixes(keys)
    return f"; it holds a TorchRec tower under {' or '.join(map(repr, found))}" if found else ""
