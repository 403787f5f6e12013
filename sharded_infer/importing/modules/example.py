"""Example inputs of a module: tensors with names, out of any nesting of its arguments."""

import inspect
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from kernels.wording import did_you_mean, listed
from sharded_infer.errors import InputError
from sharded_infer.importing.modules.keyed_bags import NO_ID, KeyedBags
from sharded_infer.repeats import repeated

_UNNAMEABLE = re.compile(r"[^A-Za-z0-9_\-]+")
_MOST_SAMPLES = 4096


@dataclass(frozen=True, slots=True)
class Leaf:
    """A tensor among a module's inputs, `[B, ...]`.

    Attributes:
        columns: names of the columns of a sample's numbers, equal where neighbours are one input;
            None: they have no names of their own.
        is_bag: its numbers are any number of ids, padded with `NO_ID`.
    """

    name: str
    tensor: Tensor
    columns: tuple[str, ...] | None = None
    is_bag: bool = False

    @property
    def width(self) -> int:
        """Numbers of a sample."""
        return self.tensor[0].numel()


@dataclass(frozen=True, slots=True)
class Example:
    """Arguments of a module's call."""

    leaves: tuple[Leaf, ...]
    _values: tuple[Any, ...]
    _structure: Any

    @classmethod
    def of(
        cls,
        module: nn.Module,
        inputs: Any,
        *,
        method: str = "forward",
        columns: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
    ) -> "Example":
        """Name the tensors of `inputs`: by argument of `method`, key of a dict, or `columns`.

        Args:
            inputs: a tuple of positional arguments, a dict of arguments by name (or, of a method
                that takes one dict, the dict), or the one argument.
            columns: names of the columns of the one `[B, F]` tensor, or of each by its name.

        Raises InputError for inputs that the method does not take, that are no tensors, or whose
        names are equal.
        """
        arguments, named = _arguments(module, inputs, method)
        pairs, structure = pytree.tree_flatten_with_path((arguments, named), is_leaf=_is_jagged)
        parameters = list(inspect.signature(getattr(module, method)).parameters)
        values: list[Any] = []
        found: list[tuple[list[str], Tensor, bool]] = []  # path, tensor, whether it holds bags
        counts: list[int] = []
        for path, given in pairs:
            steps = _steps(path, parameters)
            if _is_jagged(given):
                value, bags = KeyedBags.split(given, _MOST_SAMPLES)
                found += [([*steps, key], ids, True) for key, ids in bags.items()]
                counts += [given.stride()] * len(bags)
            else:
                value = _tensor(given)
                if isinstance(value, Tensor):
                    found.append((steps, value, False))
                    counts.append(len(value) if value.dim() else 0)
            values.append(value)
        if not found:
            raise InputError("example inputs: expected at least one tensor, got none")
        names = _names([steps for steps, _, _ in found])
        if twice := repeated(names):
            paths = [".".join(steps) for steps, _, _ in found]
            same = [path for name, path in zip(names, paths, strict=True) if name == twice[0]]
            raise InputError(
                f"example inputs: {listed([repr(path) for path in same])} have one name, "
                f"{twice[0]!r}, of letters, digits, '_' and '-': rename all but one"
            )
        tensors = {name: tensor for name, (_, tensor, _) in zip(names, found, strict=True)}
        bagged = {name for name, (_, _, is_bag) in zip(names, found, strict=True) if is_bag}
        _check_sizes(tensors, counts)
        of_leaf = _columns(columns, {n: t for n, t in tensors.items() if n not in bagged})
        leaves = [
            Leaf(name, _sampled(tensor), of_leaf.get(name), name in bagged)
            for name, tensor in tensors.items()
        ]
        return cls(tuple(leaves), tuple(values), structure)

    @property
    def samples(self) -> int:
        """B: the first 4,096 of the example, or a single one twice."""
        return len(self.leaves[0].tensor)

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All leaves' tensors."""
        return tuple(leaf.tensor for leaf in self.leaves)

    @property
    def full(self) -> tuple[Tensor, ...]:
        """All leaves' tensors, with id 0 in place of padding."""
        return tuple(
            torch.where(leaf.tensor == NO_ID, 0, leaf.tensor) if leaf.is_bag else leaf.tensor
            for leaf in self.leaves
        )

    def arguments(self, tensors: Sequence[Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Arguments of the call with other tensors in the leaves' places."""
        rest = iter(tensors)
        values = []
        for value in self._values:
            if isinstance(value, KeyedBags):
                values.append(value.joined([next(rest) for _ in value.keys]))
            else:
                values.append(next(rest) if isinstance(value, Tensor) else value)
        arguments, named = pytree.tree_unflatten(values, self._structure)
        return arguments, named


def _check_sizes(tensors: Mapping[str, Tensor], counts: Sequence[int]) -> None:
    shapes = {
        name: [count, *tensor.shape[1:]] if tensor.dim() else []
        for (name, tensor), count in zip(tensors.items(), counts, strict=True)
    }
    first = next(iter(shapes))
    for name, shape in shapes.items():
        if not tensors[name].numel() or not shape or shape[0] != counts[0]:
            raise InputError(
                f"example input {name!r}: expected [B, ...] of at least one number, as many as "
                f"{first!r} has ({shapes[first]}), got {shape}"
            )


def _sampled(tensor: Tensor) -> Tensor:
    """Neither one sample, whose size torch takes as fixed, nor more than are compared."""
    return torch.cat([tensor, tensor]) if len(tensor) == 1 else tensor[:_MOST_SAMPLES]


def _arguments(
    module: nn.Module, inputs: Any, method: str
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    call = getattr(module, method, None)
    if not callable(call):
        raise InputError(f"{type(module).__name__} has no method {method!r}")
    try:
        signature = inspect.signature(call)
    except ValueError as error:
        raise InputError(
            f"{type(module).__name__}: expected an nn.Module in Python, neither scripted nor traced"
        ) from error
    attempts: list[tuple[tuple[Any, ...], dict[str, Any]]] = []
    if isinstance(inputs, Mapping) and all(isinstance(key, str) for key in inputs):
        attempts.append(((), dict(inputs)))
    attempts.append((tuple(inputs), {}) if isinstance(inputs, tuple) else ((inputs,), {}))
    for arguments, named in attempts:
        try:
            signature.bind(*arguments, **named)
        except TypeError as error:
            refused = error
        else:
            return arguments, named
    raise InputError(
        f"example inputs: {type(module).__name__}.{method}{signature} does not take them: {refused}"
    )


def _is_jagged(value: Any) -> bool:
    return type(value).__name__ == "KeyedJaggedTensor"


def _tensor(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        value = torch.from_numpy(value)
    if isinstance(value, Tensor):
        return value.detach().cpu()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise InputError(
        "example inputs: expected tensors, arrays, numbers, KeyedJaggedTensors, and dicts, lists "
        f"and tuples of them, got a {type(value).__name__}"
    )


def _names(steps: Sequence[list[str]]) -> list[str]:
    """The shortest end of each path that no other has: a dict's key, else its argument too."""
    short = [
        # Positions in a list are no names.
        path[next((at for at in reversed(range(len(path))) if not path[at].isdigit()), 0) :]
        for path in steps
    ]
    counts = Counter(map(tuple, short))
    chosen = [
        own if counts[tuple(own)] == 1 else path for own, path in zip(short, steps, strict=True)
    ]
    return ["_".join(map(_name, path)) for path in chosen]


def _name(step: str) -> str:
    return _UNNAMEABLE.sub("_", step).strip("_-") or "input"


def _steps(path: Any, parameters: Sequence[str]) -> list[str]:
    (_, argument), rest = (path[0], path[1]), path[2:]
    first = getattr(argument, "key", None)
    if first is None:
        # Positional arguments behind the last name are of `*args`.
        first = parameters[min(argument.idx, len(parameters) - 1)]
    return [str(first), *path_names(rest)]


def path_names(path: Sequence[Any]) -> list[str]:
    """Keys, positions and attributes on the way to a value in nested ones."""
    return [
        str(getattr(step, "key", getattr(step, "idx", getattr(step, "name", "")))) for step in path
    ]


def _columns(
    columns: Sequence[str] | Mapping[str, Sequence[str]] | None, tensors: Mapping[str, Tensor]
) -> dict[str, tuple[str, ...]]:
    if columns is None:
        return {}
    if not isinstance(columns, Mapping):
        wide = [name for name, tensor in tensors.items() if tensor.dim() == 2]
        if len(wide) != 1:
            raise InputError(
                f"columns: expected them by input, one of {listed(wide) if wide else 'none [B, F]'}"
            )
        columns = {wide[0]: columns}
    for name, names in columns.items():
        if name not in tensors:
            raise InputError(
                f"columns: {name!r} is not one of the inputs {listed(list(tensors))}"
                f"{did_you_mean(name, tensors)}"
            )
        width = tensors[name][0].numel()
        if len(names) != width:
            raise InputError(f"columns of {name!r}: expected {width} names, got {len(names)}")
        runs = [column for column, _ in groupby(names)]
        if apart := repeated(runs):
            raise InputError(f"columns of {name!r}: {apart[0]!r} names columns that are apart")
    return {name: tuple(names) for name, names in columns.items()}
