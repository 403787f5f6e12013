import json
from dataclasses import asdict
from pathlib import Path

import pytest

from kernels.errors import InputError
from kernels.gpu.triton_tiles import (
    TileChoice,
    default_choice,
    read_choices,
    shape_key,
    tile_choice,
)
from kernels.row_format import RowFormat


def test_a_files_choices_are_read_by_gpu_and_shape(tmp_path: Path) -> None:
    choice = TileChoice(warps=4, thread_words=8, widest_words=32)
    path = tmp_path / "choices.json"
    path.write_text(json.dumps({"a GPU": {"int8x32@16": asdict(choice)}}))
    assert read_choices(path) == {"a GPU": {shape_key(RowFormat.INT8, 32, 16): choice}}


def test_a_gpu_or_a_shape_that_was_not_measured_gets_the_default() -> None:
    choice = TileChoice(warps=4)
    choices = {"a GPU": {"int8x32@16": choice}}

    def chosen(gpu: str, words: int, alignment: int) -> TileChoice:
        return tile_choice(
            choices, gpu, row_format=RowFormat.INT8, words=words, alignment=alignment
        )

    assert chosen("a GPU", 32, 16) == choice
    assert chosen("a GPU", 16, 16) == TileChoice()
    assert chosen("another", 32, 16) == TileChoice()
    assert chosen("a GPU", 32, 4) == default_choice(4) != TileChoice()


@pytest.mark.parametrize("text", ["", "[]", '{"a GPU": 3}', '{"a GPU": {"int8x32": {"x": 1}}}'])
def test_a_broken_file_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "choices.json"
    path.write_text(text)
    with pytest.raises(InputError, match="choices.json: not a file of tile choices"):
        read_choices(path)
