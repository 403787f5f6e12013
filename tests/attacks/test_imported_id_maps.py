"""Exports of tables by id, and managed collisions, that are cut, mixed up or something else."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from kernels.ids.id_hash import murmur_hash3_2x64
from sharded_infer.errors import WeightsError
from sharded_infer.importing.id_maps.keyed_tables import open_keyed_tables
from sharded_infer.importing.id_maps.mpzch import MpzchSettings
from sharded_infer.importing.id_maps.torchrec_maps import mch_id_map, mpzch_id_map
from tests.quant.sources.test_checkpoint import Bomb


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    """Two ranks of dynamicemb, three ids and two, of four numbers each."""
    for rank, count in ((0, 3), (1, 2)):
        ending = f"rank_{rank}.world_size_2"
        (np.arange(count) * 2 + rank).tofile(tmp_path / f"users_emb_keys.{ending}")
        np.zeros((count, 4), np.float32).tofile(tmp_path / f"users_emb_values.{ending}")
    return tmp_path


Edit = Callable[[Path], object]


def _cut(name: str, kept: int) -> Edit:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:kept])


def _rename(name: str, new: str) -> Edit:
    return lambda folder: (folder / name).rename(folder / new)


def _again(folder: Path) -> None:
    (folder / "again").mkdir()
    for name in ("users_emb_keys.rank_0.world_size_2", "users_emb_values.rank_0.world_size_2"):
        (folder / "again" / name).write_bytes((folder / name).read_bytes())


def _instead(*files: str, **arrays: np.ndarray) -> Edit:
    """Empty files, or arrays in TorchEasyRec's form."""

    def replace(folder: Path) -> None:
        for file in folder.iterdir():
            file.unlink()
        for name in files:
            (folder / name).touch()
        if arrays:
            named = {f"users.{name}": array for name, array in arrays.items()}
            np.savez(folder / "sparse_dynamic_embedding-00-of-01.npz", **named)  # type: ignore[arg-type]

    return replace


KEYS, VALUES = "users_emb_keys.rank_1.world_size_2", "users_emb_values.rank_1.world_size_2"
THREE, ROWS_OF_THREE = np.arange(3), np.zeros((3, 4), np.float32)


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (_cut(KEYS, 15), f"{KEYS}: expected rows of 8 bytes, got 15 bytes"),
        (_cut(KEYS, 8), f"{VALUES}: expected 1 row of 4 numbers, one for each id of .*, got 8"),
        (_cut(VALUES, 30), f"{VALUES}: expected rows of 4 bytes, got 30 bytes"),
        (lambda folder: (folder / VALUES).unlink(), f"{VALUES}: no such file"),
        (lambda folder: (folder / KEYS).unlink(), r"parts 0 to 1, got \[0\], none of part 1"),
        (_rename(KEYS, "users_emb_keys.rank_1.world_size_3"), "a second part 1 of 3"),
        (_rename(KEYS, "users_emb_keys.rank_01.world_size_2"), "emb_values.rank_01.*no such file"),
        (_again, "a second part 0 of 2, expected one of each of 2"),
        (
            _instead("users_emb_keys.rank_0.world_size_1", "users_emb_values.rank_0.world_size_1"),
            "table 'users': expected ids with rows, got none",
        ),
        (_instead("readme.txt"), "/.*: holds no ids of dynamicemb"),
        (_instead(keys=THREE), r"holds no weight 'users\.values'"),
        (
            _instead(keys=THREE[:2], values=ROWS_OF_THREE),
            r"'users.values': expected 2 rows .* got \[3, 4\]",
        ),
        (
            _instead(keys=np.zeros(3), values=ROWS_OF_THREE),
            "'users.keys': expected whole numbers, got torch.float64",
        ),
        (
            _instead(keys=THREE, values=np.zeros(3, np.float32)),
            r"expected 3 rows of floating .* got \[3\]",
        ),
        (_instead(keys=THREE, values=np.zeros((3, 4), np.uint8)), "floating numbers.*torch.uint8"),
    ],
)
def test_an_altered_export_is_refused(edit: Edit, words: str, dump: Path) -> None:
    assert open_keyed_tables(dump).id_maps["users"].count == 5
    edit(dump)
    with pytest.raises(WeightsError, match=words):
        open_keyed_tables(dump)


def test_a_file_that_is_cut_while_it_is_read_is_refused(dump: Path) -> None:
    tables = open_keyed_tables(dump)
    _cut(KEYS, 8)(dump)
    with pytest.raises(WeightsError, match=f"{KEYS}: changed since it was opened"):
        list(tables.id_maps["users"].chunks(5))


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["u/part_0", "u/part_2"], r"table 'u': expected parts from 0 up, got \[0, 2\]"),
        (["u", "u/part_0"], r"table 'u': expected parts from 0 up, got \[-1, 0\]"),
        (["u/part_0", "u/part_00"], "'u/part_00-keys': a second part 0"),
    ],
)
def test_partitions_of_deeprec_that_do_not_fit_are_refused(names: list[str], words: str) -> None:
    tensors: dict[str, np.ndarray] = {f"{name}-keys": THREE for name in names}
    tensors |= {f"{name}-values": ROWS_OF_THREE for name in names}
    with pytest.raises(WeightsError, match=words):
        open_keyed_tables(tensors)


def test_tensors_without_ids_are_refused() -> None:
    with pytest.raises(WeightsError, match="holds no tensor of ids, expected <name>-keys"):
        open_keyed_tables({"users": ROWS_OF_THREE})
    with pytest.raises(WeightsError, match="holds no weight 'users-values'"):
        open_keyed_tables({"users-keys": THREE})


MOST = 2**63 - 1
PREFIX = "m._managed_collision_modules.users."
FALLBACK = MpzchSettings(disable_fallback=False)


def _mch() -> dict[str, Tensor]:
    """Two ranks of four rows, three ids and two."""
    mid = 2**62
    segments = torch.full((1025,), -1)
    segments[:3] = torch.tensor([0, 4, 8])
    return {
        f"{PREFIX}_mch_sorted_raw_ids": torch.tensor([5, 7, 9, MOST, mid + 1, mid + 2, MOST, MOST]),
        f"{PREFIX}_mch_remapped_ids_mapping": torch.tensor([2, 0, 1, 3, 6, 4, 5, 7]),
        f"{PREFIX}_output_segments_tensor": segments,
    }


def _mpzch() -> dict[str, Tensor]:
    ids = torch.full((16, 1), -1)
    for key in (3, 8, 11, 2**40):
        slot = key % 2 * 8 + int(murmur_hash3_2x64(np.array([key]))[0] % np.uint64(8))
        ids[slot] = key
    return {f"{PREFIX}_hash_zch_identities": ids, f"{PREFIX}_hash_zch_bucket": torch.tensor([[2]])}


def _read_mch(state: dict[str, Tensor]) -> int:
    return mch_id_map(state, "users", input_hash="none").count


def _read_mpzch(state: dict[str, Tensor]) -> int:
    return mpzch_id_map(state, "users", FALLBACK).count


def test_the_unaltered_ones_are_read() -> None:
    assert _read_mch(_mch()) == 6, "five ids, and the one that stands for an empty slot"
    assert _read_mpzch(_mpzch()) >= 4


IDS, ROWS, SEGMENTS = (
    f"{PREFIX}{name}"
    for name in ("_mch_sorted_raw_ids", "_mch_remapped_ids_mapping", "_output_segments_tensor")
)


def _integers(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int64)


@pytest.mark.parametrize(
    ("key", "place", "value", "words"),
    [
        (IDS, 1, 5, "segment 0: expected ids in ascending order, each once, got 5"),
        (IDS, 1, MOST, "segment 0: expected ids in ascending order"),
        (IDS, 4, 10, "segment 1: row-wise sharding sends id 10 to segment 0"),
        (ROWS, 0, 4, "id 5 has row 4, expected one of its segment, 0 to 3"),
        (ROWS, 6, -1, f"id {MOST} has row -1, expected one of its segment"),
        (SEGMENTS, 0, 1, "expected segments from row 0 up"),
        (SEGMENTS, 2, -1, "has row 6|row-wise sharding sends|ascending order"),
        (IDS, None, torch.zeros(8), "expected whole numbers, got torch.float32"),
        (IDS, None, _integers(2, 4), r"one number an id, got \[2, 4"),
        (IDS, None, _integers(0), "expected 0 numbers, got 8"),
        (ROWS, None, _integers(7), "expected 8 numbers, got 7"),
        (ROWS, None, None, "holds no weight .*_mch_remapped_ids_mapping"),
    ],
)
def test_altered_mch_is_refused(key: str, place: int | None, value: Any, words: str) -> None:
    state = _mch()
    if value is None:
        del state[key]
    elif place is None:
        state[key] = value
    else:
        state[key][place] = value
    with pytest.raises(WeightsError, match=words):
        _read_mch(state)


@pytest.mark.parametrize("value", [0, -1, 3, 17, 2**62])
def test_buckets_that_the_table_has_not_are_refused(value: int) -> None:
    state = _mpzch()
    state[f"{PREFIX}_hash_zch_bucket"][0, 0] = value
    with pytest.raises(WeightsError, match=f"expected 16 rows in equal buckets, got {value}"):
        _read_mpzch(state)


def test_an_id_in_a_slot_that_is_not_searched_is_refused() -> None:
    for slot in range(16):
        state = _mpzch()
        state[f"{PREFIX}_hash_zch_identities"][slot] = 3 if slot < 8 else 8
        with pytest.raises(WeightsError, match=rf"in slot {slot} is not where the module"):
            _read_mpzch(state)


def test_a_checkpoint_that_would_run_code_is_refused(tmp_path: Path) -> None:
    harm = Bomb(tmp_path / "harm")
    torch.save(_mch() | {"harm": harm}, tmp_path / "model.pt")
    with pytest.raises(WeightsError, match="without running code"):
        mch_id_map(tmp_path / "model.pt", "users", input_hash="none")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / ".metadata").write_bytes(pickle.dumps(harm))
    with pytest.raises(WeightsError, match="nothing of it was run"):
        mch_id_map(tmp_path / "model", "users", input_hash="none")
    assert not (tmp_path / "harm").exists()


def test_two_collections_with_one_table_are_refused() -> None:
    state = _mch() | {f"other.{key}": value for key, value in _mch().items()}
    with pytest.raises(WeightsError, match="holds 'm.*' and 'other.*expected one"):
        _read_mch(state)
