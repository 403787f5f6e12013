"""The registry of architectures, which builds towers by name and options.

An architecture's options are its class's keyword arguments except `dense_width` and `feature_dims`,
which come from the dense inputs and tables of the model's description.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType

from torch import nn

from kernels.wording import did_you_mean
from sharded_infer.errors import SpecError
from sharded_infer.zoo.dcnv2 import DCNv2
from sharded_infer.zoo.dlrm import DLRM


class OptionKind(Enum):
    """The kind of an option's value; the enum's values are used in messages."""

    SIZES = "a non-empty list of positive integers"
    COUNT = "a positive integer"


@dataclass(frozen=True, slots=True)
class Architecture:
    """One architecture of the zoo.

    Attributes:
        options: the required options, by name.
    """

    build: Callable[..., nn.Module]
    options: Mapping[str, OptionKind]
    summary: str


ARCHITECTURES: Mapping[str, Architecture] = MappingProxyType(
    {
        "dlrm": Architecture(
            build=DLRM,
            options=MappingProxyType({"bottom": OptionKind.SIZES, "top": OptionKind.SIZES}),
            summary="Pairwise dot products of features of one dim (arXiv:1906.00091).",
        ),
        "dcnv2": Architecture(
            build=DCNv2,
            options=MappingProxyType(
                {
                    "bottom": OptionKind.SIZES,
                    "top": OptionKind.SIZES,
                    "cross_layers": OptionKind.COUNT,
                    "cross_rank": OptionKind.COUNT,
                }
            ),
            summary="Low-rank feature crosses, as MLPerf's DLRM-v2 (arXiv:2008.13535).",
        ),
    }
)


def build_tower(
    architecture: str,
    *,
    dense_inputs: Mapping[str, int],
    feature_dims: Sequence[int],
    options: Mapping[str, object],
) -> nn.Module:
    """Builds an untrained tower of the zoo.

    Args:
        architecture: a key of `ARCHITECTURES`.
        dense_inputs: width of each dense input; a zoo tower has one, named `dense`.
        feature_dims: embedding width of each feature, in the description's order.
        options: exactly the architecture's options.

    Returns:
        A module whose `forward(dense, embeddings)` returns `[B]` scores.

    Raises:
        SpecError: an unknown architecture or option, a missing or mistyped option, other dense
            inputs, or sizes that the architecture does not support.
    """
    chosen = ARCHITECTURES.get(architecture)
    if chosen is None:
        raise SpecError(
            f"unknown architecture {architecture!r}{did_you_mean(architecture, ARCHITECTURES)}; "
            f"known: {', '.join(sorted(ARCHITECTURES))}"
        )
    if set(dense_inputs) != {"dense"}:
        raise SpecError(
            f"architecture {architecture!r} takes exactly one dense input, named 'dense', "
            f"got {sorted(dense_inputs) or 'none'}"
        )
    if not _is_count(dense_inputs["dense"]):
        raise SpecError(
            f"the width of dense input 'dense' must be {OptionKind.COUNT.value}, "
            f"got {dense_inputs['dense']!r}"
        )
    _check_options(architecture, chosen.options, options)
    return chosen.build(
        dense_width=dense_inputs["dense"], feature_dims=tuple(feature_dims), **options
    )


def _check_options(
    architecture: str, kinds: Mapping[str, OptionKind], options: Mapping[str, object]
) -> None:
    for name in options:
        if name not in kinds:
            raise SpecError(
                f"architecture {architecture!r} has no option {name!r}{did_you_mean(name, kinds)}; "
                f"its options: {', '.join(sorted(kinds))}"
            )
    missing = sorted(set(kinds) - set(options))
    if missing:
        raise SpecError(f"architecture {architecture!r} needs the options {', '.join(missing)}")
    for name, kind in kinds.items():
        value = options[name]
        accepted = _is_count(value) if kind is OptionKind.COUNT else _is_sizes(value)
        if not accepted:
            raise SpecError(
                f"option {name!r} of architecture {architecture!r} must be {kind.value}, "
                f"got {value!r}"
            )


def _is_count(value: object) -> bool:
    # bool is a subclass of int, but `true` is not a width.
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_sizes(value: object) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(map(_is_count, value))
