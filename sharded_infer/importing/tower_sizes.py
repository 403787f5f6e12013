"""A tower's sizes, from the shapes of its parameters."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import count, takewhile

from sharded_infer.errors import WeightsError
from sharded_infer.importing.torchrec_names import (
    BOTTOM,
    CROSSNET,
    LAST,
    OVER,
    pair_vectors,
    refuse_foreign,
)

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TowerSizes:
    """A tower's sizes; `crosses` are the rank and width of each cross of a DCNv2."""

    dense_width: int
    bottom: tuple[int, ...]
    top: tuple[int, ...]
    top_width: int
    crosses: tuple[tuple[int, int], ...]

    @property
    def architecture(self) -> str:
        """The zoo's name for it."""
        return "dcnv2" if self.crosses else "dlrm"

    @property
    def options(self) -> dict[str, int | list[int]]:
        """The architecture's options, as `build_tower` takes them."""
        sizes: dict[str, int | list[int]] = {"bottom": list(self.bottom), "top": list(self.top)}
        if self.crosses:
            sizes |= {"cross_layers": len(self.crosses), "cross_rank": self.crosses[0][0]}
        return sizes

    @property
    def embedding_width(self) -> int | None:
        """Width of all features side by side; None if `top_width` fits no number of features."""
        dim = self.bottom[-1]
        if self.crosses:
            return self.top_width - dim if self.top_width > dim else None
        vectors = pair_vectors(self.top_width - dim)
        return None if vectors is None or vectors < 2 else (vectors - 1) * dim


def torchrec_sizes(shapes: Mapping[str, Shape]) -> TowerSizes:
    """The sizes of a TorchRec DLRM or DLRM_DCN, named below their prefix, or WeightsError."""
    refuse_foreign(shapes)
    bottom = _layers(shapes, (f"{BOTTOM}.{i}._linear.weight" for i in count()))
    over = _layers(shapes, (f"{OVER}.{i}._linear.weight" for i in count()))
    last = _layers(shapes, [f"{LAST}.weight"])
    crosses = _layers(shapes, (f"{CROSSNET}.V_kernels.{i}" for i in count()))
    return _sizes(bottom, [*over, *last], crosses)


def zoo_sizes(shapes: Mapping[str, Shape]) -> TowerSizes:
    """The sizes of a zoo tower; WeightsError if bottom or top is missing, or a weight not 2-D."""
    # Every other layer is a ReLU.
    bottom = _layers(shapes, (f"bottom.layers.{i}.weight" for i in count(0, 2)))
    top = _layers(shapes, (f"top.layers.{i}.weight" for i in count(0, 2)))
    crosses = _layers(shapes, (f"crosses.{i}.down.weight" for i in count()))
    return _sizes(bottom, top, crosses)


def _sizes(
    bottom: list[tuple[int, int]], top: list[tuple[int, int]], crosses: list[tuple[int, int]]
) -> TowerSizes:
    for stack, layers in (("bottom", bottom), ("top", top)):
        if not layers:
            raise WeightsError(f"the {stack} layers of the tower are missing")
    return TowerSizes(
        dense_width=bottom[0][1],
        bottom=tuple(outputs for outputs, _ in bottom),
        top=tuple(outputs for outputs, _ in top),
        top_width=top[0][1],
        crosses=tuple(crosses),
    )


def _layers(shapes: Mapping[str, Shape], names: Iterable[str]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for name in takewhile(shapes.__contains__, names):
        if len(shapes[name]) != 2:
            raise WeightsError(f"{name!r} is {list(shapes[name])}, expected two axes")
        found.append((shapes[name][0], shapes[name][1]))
    return found
