"""Tile choices measured on GPUs, in a file by GPU and shape.

`make gpu-check` measures them. A GPU or shape that is not in the file gets the defaults.
"""

import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path

from kernels.errors import InputError
from kernels.gpu.triton_tiles import TileChoice
from kernels.row_format import RowFormat

_WIDEST_ACCESS_BYTES = 16
CHOICES_FILE = Path(__file__).parent / "triton_choices.json"


def shape_key(row_format: RowFormat, words: int, alignment: int) -> str:
    """Key of a shape in the file.

    `words` are the widest row's, rounded up to a power of two; payloads are multiples of
    `alignment` bytes.
    """
    return f"{row_format}x{words}@{alignment}"


def default_choice(alignment: int) -> TileChoice:
    """The choice for a GPU or shape that was not measured."""
    # With narrower loads a thread holds words of as many rows, and all state of each row.
    return TileChoice() if alignment == _WIDEST_ACCESS_BYTES else TileChoice(thread_words=4)


def read_choices(path: Path = CHOICES_FILE) -> dict[str, dict[str, TileChoice]]:
    """Choices by GPU and shape, from JSON `{GPU: {shape: {warps, thread_words, widest_words}}}`.

    Raises InputError if the file has another content.
    """
    try:
        document = json.loads(path.read_text())
        return {
            gpu: {shape: TileChoice(**choice) for shape, choice in shapes.items()}
            for gpu, shapes in document.items()
        }
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: not a file of tile choices: {error}") from error


def write_choices(choices: Mapping[str, Mapping[str, TileChoice]], path: Path) -> None:
    """Writes a file for `read_choices`."""
    document = {
        gpu: {shape: asdict(choice) for shape, choice in sorted(shapes.items())}
        for gpu, shapes in sorted(choices.items())
    }
    path.write_text(json.dumps(document, indent=2) + "\n")


def tile_choice(
    choices: Mapping[str, Mapping[str, TileChoice]],
    gpu: str,
    *,
    row_format: RowFormat,
    words: int,
    alignment: int,
) -> TileChoice:
    """The choice for a GPU, by its name in CUDA, and a shape, or the default."""
    key = shape_key(row_format, words, alignment)
    return choices.get(gpu, {}).get(key, default_choice(alignment))


def candidates() -> Iterator[TileChoice]:
    """Choices that a tuner tries."""
    for warps, thread_words in itertools.product((1, 2), (8, 4, 16)):
        yield TileChoice(warps=warps, thread_words=thread_words)
