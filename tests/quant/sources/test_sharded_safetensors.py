import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from quant.sources.safetensors_files import ShardedSafetensorsSource
from quant.sources.weight_source import SourceError

ADS = torch.arange(12.0).view(4, 3)
ITEMS = torch.arange(10).view(5, 2)
FILES = {"ads.weight": "part-1.safetensors", "items.weight": "part-2.safetensors"}


@pytest.fixture
def index(tmp_path: Path) -> Path:
    save_file({"ads.weight": ADS, "unlisted": ADS.clone()}, tmp_path / "part-1.safetensors")
    save_file({"items.weight": ITEMS}, tmp_path / "part-2.safetensors")
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {"total_size": 128}, "weight_map": FILES}))
    return path


def refused(index: Path, words: str) -> None:
    with pytest.raises(SourceError, match=f"{index}: {words}"):
        ShardedSafetensorsSource(index)


def test_every_listed_weight_is_read_from_its_file(index: Path) -> None:
    source = ShardedSafetensorsSource(index)
    assert source.description == str(index)
    assert list(source.keys()) == ["ads.weight", "items.weight"]
    assert source.shape("ads.weight") == (4, 3) and source.shape("items.weight") == (5, 2)
    assert torch.equal(source.read("ads.weight", 1, 3), ADS[1:3])
    assert torch.equal(source.read("items.weight", 0, 5), ITEMS)
    file = index.with_name("part-1.safetensors")
    with pytest.raises(SourceError, match=rf"{file}: 'ads.weight' is \[4, 3\]: it has no rows 2 t"):
        source.read("ads.weight", 2, 5)


def test_a_missing_file_is_named_when_it_is_opened(index: Path) -> None:
    index.with_name("part-2.safetensors").unlink()
    refused(index, f"'items.weight': no such file: {index.parent}/part-2.safetensors")


def test_a_weight_absent_from_its_file_is_named_when_it_is_opened(index: Path) -> None:
    index.write_text(json.dumps({"weight_map": FILES | {"users": "part-1.safetensors"}}))
    refused(index, "says that part-1.safetensors holds 'users', which it does not")


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (
            ("../part-1.safetensors", "/etc/part-1.safetensors", "a\\b.safetensors"),
            "expected a plain file name, got",
        ),
        (("./part-1.safetensors", "a\0b.safetensors"), "expected a plain file name, got"),
        (("x" * 300 + ".safetensors", "\ud800.safetensors"), "no such file"),
        (
            ("pytorch_model-00001.bin", 3, None, ["part-1.safetensors"]),
            "expected the name of a .safetensors file, got",
        ),
    ],
)
def test_other_file_names_are_refused(names: tuple[object, ...], words: str, index: Path) -> None:
    for name in names:
        index.write_text(json.dumps({"weight_map": {"ads.weight": name}}))
        refused(index, f"'ads.weight': {words}")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "not a readable index: the file is empty"),
        ("{", "not a readable index"),
        ("[" * 100_000, "not a readable index"),
        ("\x80", "not a readable index"),
        ("[]", "expected a 'weight_map' of weights to files, found none"),
        ("{}", "expected a 'weight_map' of weights to files, found none"),
        ('{"weight_map": {}}', "expected a 'weight_map' of weights to files, found none"),
        ('{"weight_map": ["a"]}', "expected a 'weight_map' of weights to files, found none"),
    ],
)
def test_a_file_that_is_no_index_is_refused(content: str, words: str, index: Path) -> None:
    index.write_bytes(content.encode("latin-1"))
    refused(index, words)
