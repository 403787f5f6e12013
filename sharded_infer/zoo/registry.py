"""Registry of architectures, which builds towers by name and options.

An architecture's options are its class's keyword arguments except `dense_width`, `feature_dims` and
`history`, which come from the model's description.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial
from types import MappingProxyType

from torch import nn

from kernels.wording import did_you_mean
from sharded_infer.errors import SpecError
from sharded_infer.zoo.bst import BST
from sharded_infer.zoo.dcnv2 import DCNv2
from sharded_infer.zoo.din import DIN
from sharded_infer.zoo.dlrm import DLRM
from sharded_infer.zoo.history import SequenceSizes
from sharded_infer.zoo.hstu import HSTU
from sharded_infer.zoo.sasrec import SASRec

# Names of the dense input, the sequence and its companion in towers of the zoo.
DENSE = "dense"
HISTORY = "history"
AGE = "age"


class OptionKind(Enum):
    """Kind of an option's value; the enum's values are used in messages."""

    SIZES = "a non-empty list of positive integers"
    COUNT = "a positive integer"


@dataclass(frozen=True, slots=True)
class Architecture:
    """One architecture of the zoo.

    Attributes:
        options: the required options, by name.
        dense_inputs: names of its dense inputs.
        companions: names of the one-wide dense companions of its sequence `history`; None: it takes
            no sequence.
    """

    build: Callable[..., nn.Module]
    options: Mapping[str, OptionKind]
    summary: str
    dense_inputs: tuple[str, ...] = (DENSE,)
    companions: tuple[str, ...] | None = None


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
        "din": Architecture(
            build=DIN,
            options=MappingProxyType(
                {"attention": OptionKind.COUNT, "top": OptionKind.SIZES},
            ),
            summary="Attention of a candidate over the history (arXiv:1706.06978).",
            dense_inputs=(),
            companions=(),
        ),
        "sasrec": Architecture(
            build=SASRec,
            options=MappingProxyType({"blocks": OptionKind.COUNT, "heads": OptionKind.COUNT}),
            summary="A causal transformer over the history (arXiv:1808.09781).",
            dense_inputs=(),
            companions=(),
        ),
        "sasrec-forward": Architecture(
            build=partial(SASRec, counts_from_first=True),
            options=MappingProxyType({"blocks": OptionKind.COUNT, "heads": OptionKind.COUNT}),
            summary="SASRec with positions from the first step on, whose states can be kept.",
            dense_inputs=(),
            companions=(),
        ),
        "bst": Architecture(
            build=BST,
            options=MappingProxyType(
                {
                    "heads": OptionKind.COUNT,
                    "time_buckets": OptionKind.COUNT,
                    "top": OptionKind.SIZES,
                }
            ),
            summary="A transformer block over history and candidate (arXiv:1905.06874).",
            dense_inputs=(),
            companions=(AGE,),
        ),
        "hstu": Architecture(
            build=HSTU,
            options=MappingProxyType(
                {
                    "layers": OptionKind.COUNT,
                    "heads": OptionKind.COUNT,
                    "time_buckets": OptionKind.COUNT,
                    "top": OptionKind.SIZES,
                }
            ),
            summary="Gated layers of pointwise attention over the history (arXiv:2402.17152).",
            dense_inputs=(),
            companions=(AGE,),
        ),
    }
)


def build_tower(
    architecture: str,
    *,
    dense_inputs: Mapping[str, int],
    feature_dims: Sequence[int],
    options: Mapping[str, object],
    sequences: Mapping[str, SequenceSizes] = MappingProxyType({}),
) -> nn.Module:
    """Builds an untrained tower of the zoo.

    Args:
        architecture: a key of `ARCHITECTURES`.
        dense_inputs: width of each dense input.
        feature_dims: embedding width of each pooled feature, in the description's order.
        options: exactly the architecture's options.
        sequences: sizes of each sequence; a zoo tower takes none, or one named `history`.

    Returns:
        A module whose `forward` takes by name the dense inputs, then `history`, `history_lengths`
            and the history's companions, then `embeddings`, and returns `[B]` scores.

    Raises:
        SpecError: an unknown architecture or option, a missing or mistyped option, other dense
            inputs, sequences or companions, or sizes that the architecture does not support.
    """
    chosen = ARCHITECTURES.get(architecture)
    if chosen is None:
        raise SpecError(
            f"unknown architecture {architecture!r}{did_you_mean(architecture, ARCHITECTURES)}; "
            f"known: {', '.join(sorted(ARCHITECTURES))}"
        )
    _check_names(architecture, "dense inputs", dense_inputs, chosen.dense_inputs)
    for name, width in dense_inputs.items():
        if not _is_count(width):
            raise SpecError(
                f"the width of dense input {name!r} must be {OptionKind.COUNT.value}, got {width!r}"
            )
    wanted = () if chosen.companions is None else (HISTORY,)
    _check_names(architecture, "sequences", sequences, wanted)
    _check_options(architecture, chosen.options, options)
    if chosen.companions is None:
        return chosen.build(
            dense_width=dense_inputs[DENSE], feature_dims=tuple(feature_dims), **options
        )
    history = sequences[HISTORY]
    _check_names(architecture, f"dense companions of {HISTORY!r}", history.dense, chosen.companions)
    for name, width in history.dense.items():
        if width != 1:
            raise SpecError(
                f"dense companion {name!r} of {HISTORY!r}: architecture {architecture!r} takes "
                f"a width of 1, got {width}"
            )
    return chosen.build(history=history, feature_dims=tuple(feature_dims), **options)


def _check_names(
    architecture: str, kind: str, found: Iterable[str], wanted: tuple[str, ...]
) -> None:
    names = sorted(found)
    if names != sorted(wanted):
        raise SpecError(
            f"architecture {architecture!r} takes the {kind} {list(wanted) or 'none'}, "
            f"got {names or 'none'}"
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
