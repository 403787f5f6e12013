"""Tile choices measured on cards: kept in a file, looked up by card and shape, never tried here.

`make gpu-check` measures them. A card or shape that is not in the file gets the defaults.
"""

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

from kernels.errors import InputError
from kernels.row_format import RowFormat
from kernels.triton_tiles import TileChoice

_WIDEST_ACCESS_BYTES = 16
CHOICES_FILE = Path(__file__).parent / "triton_choices.json"


def shape_key(row_format: RowFormat, words: int, alignment: int) -> str:
    """The name of a shape in the file.

    Args:
        row_format: of the tables.
        words: of the widest row, rounded up to a power of two.
        alignment: bytes that payloads are multiples of.
    """
    return f"{row_format}x{words}@{alignment}"


def default_choice(alignment: int) -> TileChoice:
    """What holds for a card or shape that was not measured."""
    # With narrower loads a thread holds words of as many rows, and all that goes with each row.
    return TileChoice() if alignment == _WIDEST_ACCESS_BYTES else TileChoice(thread_words=4)


def read_choices(path: Path = CHOICES_FILE) -> dict[str, dict[str, TileChoice]]:
    """Choices by card and shape.

    Args:
        path: a JSON file of `{card: {shape: {warps, thread_words, widest_words}}}`.

    Raises:
        InputError: the file is not such a file.
    """
    try:
        document = json.loads(path.read_text())
        return {
            card: {shape: TileChoice(**choice) for shape, choice in shapes.items()}
            for card, shapes in document.items()
        }
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: not a file of tile choices: {error}") from error


def write_choices(choices: Mapping[str, Mapping[str, TileChoice]], path: Path) -> None:
    """Writes what `read_choices` reads."""
    document = {
        card: {shape: asdict(choice) for shape, choice in sorted(shapes.items())}
        for card, shapes in sorted(choices.items())
    }
    path.write_text(json.dumps(document, indent=2) + "\n")


def tile_choice(
    choices: Mapping[str, Mapping[str, TileChoice]],
    card: str,
    *,
    row_format: RowFormat,
    words: int,
    alignment: int,
) -> TileChoice:
    """The choice for a card and a shape, or the default.

    Args:
        choices: by card and shape.
        card: the device's name, as CUDA says it.
        row_format: as `shape_key` has it.
        words: likewise.
        alignment: likewise.
    """
    key = shape_key(row_format, words, alignment)
    return choices.get(card, {}).get(key, default_choice(alignment))


def candidates() -> Iterator[TileChoice]:
    """What a tuner tries."""
    for warps, thread_words, widest in itertools.product((1, 2, 4), (4, 8, 16), (32, 64)):
        yield TileChoice(warps=warps, thread_words=thread_words, widest_words=widest)
