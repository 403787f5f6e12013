"""Detection of a zoo tower in a checkpoint."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from kernels.wording import counted
from quant.sources.weight_source import WeightSource
from sharded_infer.errors import WeightsError
from sharded_infer.importing.torchrec_names import torchrec_keys, torchrec_prefixes
from sharded_infer.importing.tower_sizes import TowerSizes, torchrec_sizes, zoo_sizes
from sharded_infer.specs.model_spec import TowerSpec

_ZOO_FIRST = "bottom.layers.0.weight"
_ZOO_PARTS = ("bottom.", "top.", "crosses.")
_UNKNOWN = 'an architecture of the zoo with its sizes, or program = "tower.pt2"'


@dataclass(frozen=True, slots=True)
class DraftedTower:
    """A tower of the zoo, if the checkpoint holds one.

    `fields` are those of the spec's `[tower]`, `field_doubts` the reasons of guesses, and `dim` is
    that of all tables if the sizes determine it.
    """

    keys: frozenset[str] = frozenset()
    sizes: TowerSizes | None = None
    fields: Mapping[str, object] = field(default_factory=dict)
    field_doubts: Mapping[str, str] = field(default_factory=dict)
    dim: int | None = None
    reason: str = _UNKNOWN

    @property
    def inputs(self) -> dict[str, int]:
        """The dense inputs: a zoo tower has one."""
        return {} if self.sizes is None else {"dense": self.sizes.dense_width}

    def doubts(self, dims: Sequence[int]) -> list[str]:
        """Contradictions between the tower's sizes and the tables' dims, one feature each."""
        if self.sizes is None:
            return [self.reason]
        sizes, dim, width = self.sizes, self.sizes.bottom[-1], self.sizes.embedding_width
        doubts = []
        if width is None:
            doubts.append(
                f"the first top layer has {counted(sizes.top_width, 'input')}, which "
                "no number of features "
                f"beside a bottom of {dim} leads to"
            )
        elif not sizes.crosses and set(dims) != {dim}:
            doubts.append(f"the tower takes features of dim {dim}, not of {sorted(set(dims))}")
        elif width != sum(dims):
            known = (
                f"{counted(width // dim, 'feature')} of dim {dim}"
                if set(dims) == {dim}
                else "features"
            )
            doubts.append(
                f"the tower takes {known}, {counted(width, 'number')} in all; the "
                "tables, with one feature "
                f"each, give {sum(dims)}"
            )
        if any(cross != (sizes.crosses[0][0], sizes.top_width) for cross in sizes.crosses):
            doubts.append(
                f"the crosses' [rank, width] are {[list(c) for c in sizes.crosses]}, expected one "
                f"rank and the width {sizes.top_width}"
            )
        if sizes.top[-1] != 1:
            doubts.append(f"the top ends with {sizes.top[-1]}, a tower of the zoo with 1")
        return doubts


def draft_tower(source: WeightSource) -> DraftedTower:
    """Find a zoo tower under our names or TorchRec's."""
    keys = list(source.keys())
    default = TowerSpec().weights
    ours = [
        key.removesuffix(_ZOO_FIRST)
        for key in keys
        if key == _ZOO_FIRST or key.endswith(f".{_ZOO_FIRST}")
    ]
    theirs = torchrec_prefixes(keys)
    prefixes = sorted(ours, key=lambda prefix: prefix != default) or theirs
    if not prefixes:
        return DraftedTower()
    prefix = prefixes[0]
    named = torchrec_keys(keys, prefix)
    if ours:
        starts = tuple(prefix + part for part in _ZOO_PARTS)
        named = {key.removeprefix(prefix): key for key in keys if key.startswith(starts)}
    shapes = {name: source.shape(key) for name, key in named.items()}
    try:
        sizes = zoo_sizes(shapes) if ours else torchrec_sizes(shapes)
    except WeightsError as error:
        return DraftedTower(frozenset(named.values()), reason=str(error))
    fields: dict[str, object] = {"architecture": sizes.architecture, **sizes.options}
    if not ours or prefix != default:
        fields["weights"] = prefix
    doubts = {}
    if len(prefixes) > 1:
        others = ", ".join(map(ascii, prefixes[1:]))
        doubts["weights"] = f"there are towers under {others} too"
    # Features of TorchRec's models and of DLRM have the bottom's width; those of DCNv2 may differ.
    known = not ours or not sizes.crosses
    dim = sizes.bottom[-1] if known else None
    return DraftedTower(frozenset(named.values()), sizes, fields, doubts, dim)
