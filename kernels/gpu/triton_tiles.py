"""Tiles of the Triton kernels, and the features that share them, planned before any launch.

A tile is `rows` rows of `words` 4-byte words, read by the threads of a program at once. Sizes are
powers of two. docs/gpu-engine.md has the reasons for the numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kernels.gpu.row_stride import WIDE_BYTES
from kernels.row_format import RowFormat

_WORD_BITS = 32
_WARP_THREADS = 32
_THREAD_ELEMENTS = 32  # fp32 sums that a thread holds
# Ids and headers of more rows than that would cross threads through shared memory.
_MOST_ROWS = 32
# Usual ids from which a bag has a program of its own. On an H100 a bound of 4 took 9% longer for
# DLRM-v2's bags (docs/gpu.md).
_LONG_BAG = 16
# Capability from which GPUs convert fp8 (e4m3).
_CONVERTS_FP8 = 89
# A narrow tile must save this share of the wide one's lanes to be worth its code.
_WORTHWHILE_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class TileChoice:
    """Tuned parameters of tiles.

    Attributes:
        thread_words: most words in flight in a thread.
        widest_words: most words of a row in a tile; several programs share longer rows.
    """

    warps: int = 1
    thread_words: int = 8
    widest_words: int = 64

    def tile_rows(self, row_format: RowFormat, words: int) -> int:
        """Rows of a tile of `words` words."""
        by_sums = _THREAD_ELEMENTS * row_format.element_bits // _WORD_BITS
        thread_words = min(self.thread_words, max(2, by_sums))
        rows = self.warps * _WARP_THREADS * thread_words // words
        return max(1, min(_MOST_ROWS, rows))


def default_choice(alignment: int) -> TileChoice:
    """The choice for rows at multiples of `alignment` bytes: the fastest tiles on an H100."""
    # With narrower loads a thread holds words of as many rows, and all state of each row.
    return TileChoice() if alignment == WIDE_BYTES else TileChoice(thread_words=4)


@dataclass(frozen=True, slots=True)
class TilePlan:
    """How one launch reads its features.

    Attributes:
        order: features by kind: long bags and wide rows, long and narrow, short and wide, short and
            narrow.
        kinds: features of each kind.
        wide: rows and words of a wide tile.
        narrow: rows and words of a narrow one; words are 0 when there are no narrow features.
        wide_chunks: programs that share a wide feature's columns.
    """

    order: tuple[int, ...]
    kinds: tuple[int, int, int, int]
    wide: tuple[int, int]
    narrow: tuple[int, int]
    wide_chunks: int
    warps: int

    def programs(self, batch: int) -> int:
        """Programs of a launch over `batch` samples."""
        long_wide, long_narrow, short_wide, short_narrow = self.kinds
        wide = long_wide * batch + short_wide * -(-batch // self.wide[0])
        narrow = long_narrow * batch + short_narrow * -(-batch // self.narrow[0])
        return wide * self.wide_chunks + narrow


def most_registers(row_format: RowFormat, capability: int) -> int:
    """Most registers of a thread with which the default tiles do not spill.

    Without a bound the assembler spills a few values to run one more program. `capability` is the
    GPU's, such as 90; the assembler for 100 and later needs more.
    """
    if row_format.element_bits >= 16:
        return 96
    return 104 if row_format.element_bits == 8 and capability < 100 else 128


def kernel_format(row_format: RowFormat, capability: int) -> str:
    """The kernels' name of a format; `fp8_converted` where the GPU itself widens fp8."""
    converts = row_format is RowFormat.FP8 and capability >= _CONVERTS_FP8
    return "fp8_converted" if converts else row_format.value


def row_words(row_format: RowFormat, dim: int) -> int:
    """Words of a row's payload, the last perhaps not full."""
    return -(-dim * row_format.element_bits // _WORD_BITS)


def plan_tiles(
    row_format: RowFormat,
    dims: Sequence[int],
    choice: TileChoice,
    *,
    typical_lengths: Sequence[float] | None = None,
) -> TilePlan:
    """Chooses tiles and orders the features.

    `typical_lengths`, usual ids of each feature's bag, affect only speed; None: short bags.
    """
    words = [row_words(row_format, dim) for dim in dims]
    wide = min(power_of_two(max(words)), choice.widest_words)
    narrow = _narrow_words(words, wide)
    wide_rows = choice.tile_rows(row_format, wide)
    narrow_rows = choice.tile_rows(row_format, narrow) if narrow else 1

    def kind(feature: int) -> int:
        is_narrow = words[feature] <= narrow
        is_long = typical_lengths is not None and typical_lengths[feature] >= _LONG_BAG
        return (0 if is_long else 2) + is_narrow

    kinds = [kind(feature) for feature in range(len(dims))]
    counts = [kinds.count(value) for value in range(4)]
    return TilePlan(
        order=tuple(sorted(range(len(dims)), key=lambda feature: kinds[feature])),
        kinds=(counts[0], counts[1], counts[2], counts[3]),
        wide=(wide_rows, wide),
        narrow=(narrow_rows, narrow),
        wide_chunks=-(-max(words) // wide),
        warps=choice.warps,
    )


def _narrow_words(words: Sequence[int], wide: int) -> int:
    """Width of the narrow tile that leaves the fewest lanes idle; 0: none helps."""

    def lanes(narrow: int) -> int:
        return sum(narrow if count <= narrow else -(-count // wide) * wide for count in words)

    widths = [2**power for power in range(wide.bit_length() - 1)]
    best = min(widths, key=lanes, default=0)
    return best if best and lanes(best) <= (1 - _WORTHWHILE_SHARE) * lanes(0) else 0


def power_of_two(number: int) -> int:
    """The smallest power of two that is at least `number`."""
    return 1 << (number - 1).bit_length()
