"""TorchRec's DLRM and DLRM_DCN: mapping of their parameters to our towers'.

| ours | TorchRec's |
| --- | --- |
| `bottom.layers.{2i}` | `dense_arch.model._mlp.{i}._linear` |
| `top.layers.{2i}`, but the last | `over_arch.model.0._mlp.{i}._linear` |
| `top.layers.{2i}`, the last | `over_arch.model.1` |
| `crosses.{i}.down.weight` | `inter_arch.crossnet.V_kernels.{i}` |
| `crosses.{i}.up.weight` | `inter_arch.crossnet.W_kernels.{i}` |
| `crosses.{i}.up.bias` | `inter_arch.crossnet.bias.{i}` |

The names are those of `torchrec/models/dlrm.py` and `torchrec/modules/crossnet.py`, release 1.8.
Both towers concatenate the same vectors in the same order. Only DLRM's pairs of vectors differ in
order, so the columns of the first top layer are permuted. TorchRec's models return log-odds: our
scores are their sigmoid.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from math import isqrt

import torch
from torch import Tensor

from kernels.wording import counted
from sharded_infer.errors import WeightsError

BOTTOM = "dense_arch.model._mlp"
OVER = "over_arch.model.0._mlp"
LAST = "over_arch.model.1"
CROSSNET = "inter_arch.crossnet"
# The parameter that identifies a tower.
_FIRST = f"{BOTTOM}.0._linear.weight"
# The modules of TorchRec's models that make up the tower.
_PARTS = ("dense_arch.", "inter_arch.", "over_arch.")
# The prefix that torch.compile adds to a compiled module's parameters.
_COMPILED = "_orig_mod."
_CROSS = {"down.weight": "V_kernels", "up.weight": "W_kernels", "up.bias": "bias"}
_CROSS_NAME = re.compile(re.escape(CROSSNET) + r"\.(W_kernels|V_kernels|bias)\.\d+(\..*)?")


# Attributes of TorchRec's collections that hold their tables.
_TABLES = ("embedding_bags", "embeddings")


def table_of(name: str) -> str:
    """The table of a full name such as `model.ebc.embedding_bags.t_user`, with `.weight` or not."""
    steps = name.removesuffix(".weight").split(".")
    starts = [place for place, step in enumerate(steps[:-1]) if step in _TABLES]
    return ".".join(steps[starts[-1] + 1 :]) if starts else steps[-1]


def bare_name(key: str) -> str:
    """A key without torch.compile's prefix."""
    return key.replace(_COMPILED, "")


def torchrec_prefixes(keys: Iterable[str]) -> list[str]:
    """The prefixes of all TorchRec towers of a checkpoint, ascending."""
    names = {bare_name(key) for key in keys}
    return sorted(
        name.removesuffix(_FIRST) for name in names if name == _FIRST or name.endswith(f".{_FIRST}")
    )


def torchrec_keys(keys: Iterable[str], prefix: str) -> dict[str, str]:
    """A TorchRec tower's keys in the checkpoint, by name below the prefix."""
    bare = bare_name(prefix)
    named = {bare_name(key): key for key in keys}
    return {
        name.removeprefix(bare): key
        for name, key in named.items()
        if name.startswith(tuple(bare + part for part in _PARTS))
    }


def torchrec_name(parameter: str, top_layers: int) -> str:
    """TorchRec's name of a zoo tower's parameter."""
    stack, _, rest = parameter.partition(".")
    if stack == "crosses":
        index, _, kind = rest.partition(".")
        return f"{CROSSNET}.{_CROSS[kind]}.{index}"
    _, position, kind = rest.split(".")
    layer = int(position) // 2  # every other one is a ReLU
    if stack == "bottom":
        return f"{BOTTOM}.{layer}._linear.{kind}"
    if layer == top_layers - 1:
        return f"{LAST}.{kind}"
    return f"{OVER}.{layer}._linear.{kind}"


def refuse_foreign(names: Iterable[str]) -> None:
    """Refuse (WeightsError) parameters of an interaction without a zoo tower."""
    inter = sorted(name for name in names if name.startswith("inter_arch."))
    foreign = [name for name in inter if not _CROSS_NAME.fullmatch(name)]
    if foreign:
        raise WeightsError(
            f"{foreign[0]!r}: the zoo has no tower with this interaction, only those of TorchRec's "
            "DLRM and DLRM_DCN; export the tower and name it as the spec's tower.program"
        )


def read_parameters(
    wanted: Mapping[str, tuple[int, ...]],
    shapes: Mapping[str, tuple[int, ...]],
    read: Callable[[str], Tensor],
) -> dict[str, Tensor]:
    """Read the fp32 parameters of a zoo tower from a TorchRec tower.

    `wanted` has the zoo tower's shapes, `shapes` those of TorchRec's names below the prefix; `read`
    takes TorchRec's name. Raises WeightsError, naming the parameter and both shapes, if one is
    missing, misshapen or without a place in the tower.
    """
    refuse_foreign(shapes)
    top_layers = _layers(wanted, "top")
    names = {parameter: torchrec_name(parameter, top_layers) for parameter in wanted}
    for parameter, name in names.items():
        if name not in shapes:
            raise WeightsError(f"no {name!r}, expected one of shape {list(wanted[parameter])}")
        if shapes[name] != wanted[parameter]:
            raise WeightsError(
                f"{name!r} is {list(shapes[name])}, expected {list(wanted[parameter])}"
            )
    known = tuple(f"{name}." for name in names.values())
    # An optimizer's state has its parameter's name as its prefix.
    extra = [n for n in shapes if n not in names.values() and not n.startswith(known)]
    if extra:
        raise WeightsError(
            f"{min(extra)!r} of shape {list(shapes[min(extra)])} has no place in the spec's tower"
        )
    parameters = {parameter: read(name).to(torch.float32) for parameter, name in names.items()}
    if not any(name.startswith("crosses.") for name in wanted):
        first, last = "top.layers.0.weight", 2 * (_layers(wanted, "bottom") - 1)
        dim = wanted[f"bottom.layers.{last}.weight"][0]
        parameters[first] = reorder_pairs(parameters[first], dim)
    return parameters


def reorder_pairs(weight: Tensor, dim: int) -> Tensor:
    """The first top layer of a TorchRec DLRM, with its columns in our DLRM's order.

    Both take the bottom's vector, then the dot product of every pair of F vectors: TorchRec reads
    the upper triangle of the products row by row, ours is the lower one. `weight` is `[out, dim +
    (F + 1) F / 2]`; columns after the first `dim` are permuted. Raises WeightsError if its width
    fits no F.
    """
    pairs = weight.shape[1] - dim
    vectors = pair_vectors(pairs)
    if vectors is None:
        raise WeightsError(
            f"the first top layer is {list(weight.shape)}: "
            f"{counted(pairs, 'column')} after the first {dim} "
            "are not the pairs of any number of vectors"
        )
    position = torch.zeros(vectors, vectors, dtype=torch.int64)
    upper_rows, upper_columns = torch.triu_indices(vectors, vectors, offset=1)
    position[upper_rows, upper_columns] = torch.arange(pairs)
    lower_rows, lower_columns = torch.tril_indices(vectors, vectors, offset=-1)
    order = position[lower_columns, lower_rows]
    return torch.cat([weight[:, :dim], weight[:, dim + order]], dim=1)


def pair_vectors(pairs: int) -> int | None:
    """The number of vectors with this many pairs; None if there is none."""
    if pairs < 0:
        return None
    vectors = (1 + isqrt(1 + 8 * pairs)) // 2
    return vectors if vectors * (vectors - 1) // 2 == pairs else None


def _layers(wanted: Iterable[str], stack: str) -> int:
    return sum(name.startswith(f"{stack}.") and name.endswith(".weight") for name in wanted)
