"""Exports of tables by id that are cut, mixed up or something else."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sharded_infer.errors import WeightsError
from sharded_infer.importing.id_maps.keyed_tables import open_keyed_tables


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    """Two ranks of dynamicemb, three ids and two, of four numbers each."""
    for rank, count in ((0, 3), (1, 2)):
        ending = f"rank_{rank}.world_size_2"
        (np.arange(count) * 2 + rank).tofile(tmp_path / f"users_emb_keys.{ending}")
        np.zeros((count, 4), np.float32).tofile(tmp_path / f"users_emb_values.{ending}")
    return tmp_path


def _cut(name: str, kept: int) -> Callable[[Path], object]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:kept])


def _rename(name: str, new: str) -> Callable[[Path], object]:
    return lambda folder: (folder / name).rename(folder / new)


KEYS, VALUES = "users_emb_keys.rank_1.world_size_2", "users_emb_values.rank_1.world_size_2"


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (_cut(KEYS, 15), f"{KEYS}: expected rows of 8 bytes, got 15 bytes"),
        (_cut(KEYS, 8), f"{VALUES}: expected 1 row of 4 numbers, one for each id of .*, got 8"),
        (_cut(VALUES, 30), f"{VALUES}: expected rows of 4 bytes, got 30 bytes"),
        (lambda folder: (folder / VALUES).unlink(), f"{VALUES}: no such file"),
        (
            lambda folder: (folder / KEYS).unlink(),
            r"expected parts 0 to 1, got \[0\], none of part 1",
        ),
        (_rename(KEYS, "users_emb_keys.rank_1.world_size_3"), "a second part 1 of 3"),
        (_rename(KEYS, "users_emb_keys.rank_01.world_size_2"), "emb_values.rank_01.*no such file"),
    ],
)
def test_an_altered_dump_is_refused(edit: Callable[[Path], object], words: str, dump: Path) -> None:
    assert open_keyed_tables(dump).id_maps["users"].count == 5
    edit(dump)
    with pytest.raises(WeightsError, match=words):
        open_keyed_tables(dump)


def test_a_table_in_two_folders_is_refused(dump: Path) -> None:
    for name in ("users_emb_keys.rank_0.world_size_2", "users_emb_values.rank_0.world_size_2"):
        (dump / "again").mkdir(exist_ok=True)
        (dump / "again" / name).write_bytes((dump / name).read_bytes())
    with pytest.raises(WeightsError, match="a second part 0 of 2, expected one of each of 2"):
        open_keyed_tables(dump)


def test_a_file_that_is_cut_while_it_is_read_is_refused(dump: Path) -> None:
    tables = open_keyed_tables(dump)
    _cut(KEYS, 8)(dump)
    with pytest.raises(WeightsError, match=f"{KEYS}: changed since it was opened"):
        list(tables.id_maps["users"].chunks(5))


def test_a_table_without_ids_is_refused(tmp_path: Path) -> None:
    (tmp_path / "users_emb_keys.rank_0.world_size_1").touch()
    (tmp_path / "users_emb_values.rank_0.world_size_1").touch()
    with pytest.raises(WeightsError, match="table 'users': expected ids with rows, got none"):
        open_keyed_tables(tmp_path)


def test_a_folder_of_other_things_is_refused(tmp_path: Path) -> None:
    (tmp_path / "readme.txt").touch()
    with pytest.raises(WeightsError, match=f"{tmp_path}: holds no ids of dynamicemb"):
        open_keyed_tables(tmp_path)


KEPT = {"users.keys": np.arange(3), "users.values": np.zeros((3, 4), np.float32)}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"users.keys": np.arange(2)}, r"'users.values': expected 2 rows .* got \[3, 4\]"),
        ({"users.keys": np.zeros(3)}, "'users.keys': expected whole numbers, got torch.float64"),
        ({"users.values": np.zeros(3, np.float32)}, r"expected 3 rows of floating .* got \[3\]"),
        ({"users.values": np.zeros((3, 4), np.uint8)}, "floating numbers.*torch.uint8"),
    ],
)
def test_an_altered_npz_file_is_refused(
    changed: dict[str, np.ndarray], words: str, tmp_path: Path
) -> None:
    np.savez(tmp_path / "sparse_dynamic_embedding-00-of-01.npz", **(KEPT | changed))
    with pytest.raises(WeightsError, match=words):
        open_keyed_tables(tmp_path)


def test_a_npz_file_without_rows_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "sparse_dynamic_embedding-00-of-01.npz", **{"users.keys": np.arange(3)})
    with pytest.raises(WeightsError, match=r"holds no weight 'users\.values'"):
        open_keyed_tables(tmp_path)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (["u/part_0", "u/part_2"], r"table 'u': expected parts from 0 up, got \[0, 2\]"),
        (["u", "u/part_0"], r"table 'u': expected parts from 0 up, got \[-1, 0\]"),
        (["u/part_0", "u/part_00"], "'u/part_00-keys': a second part 0"),
    ],
)
def test_partitions_of_deeprec_that_do_not_fit_are_refused(names: list[str], words: str) -> None:
    tensors = {}
    for name in names:
        tensors |= {f"{name}-keys": np.arange(3), f"{name}-values": np.zeros((3, 4), np.float32)}
    with pytest.raises(WeightsError, match=words):
        open_keyed_tables(tensors)


def test_tensors_without_ids_are_refused() -> None:
    with pytest.raises(WeightsError, match="holds no tensor of ids, expected <name>-keys"):
        open_keyed_tables({"users": np.zeros((3, 4), np.float32)})
    with pytest.raises(WeightsError, match="holds no weight 'users-values'"):
        open_keyed_tables({"users-keys": np.arange(3)})
