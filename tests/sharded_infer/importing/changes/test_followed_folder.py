from pathlib import Path

import numpy as np
import pytest
import torch

from sharded_infer.errors import WeightsError
from sharded_infer.importing.changes.changed_rows import ChangedRows
from sharded_infer.importing.changes.followed_folder import FollowedFolder
from sharded_infer.importing.changes.written_files import write_changes


def put(path: Path, number: float, *ids: int, removed: tuple[int, ...] = ()) -> Path:
    path.parent.mkdir(exist_ok=True)
    values = torch.full((len(ids), 2), float(number))
    gone = np.array(removed, np.int64)
    write_changes({"item": ChangedRows(np.array(ids), values, removed=gone)}, path)
    return path


def names(paths: list[Path]) -> list[str]:
    return [path.stem for path in paths]


def test_files_come_once_in_the_order_of_their_names(tmp_path: Path) -> None:
    folder = FollowedFolder(tmp_path)
    assert folder.pending() == []
    for name in ("step_10", "step_9", "step_100"):
        put(tmp_path / f"{name}.safetensors", 1, 1)
    assert folder.pending() == [
        tmp_path / f"{name}.safetensors" for name in ("step_9", "step_10", "step_100")
    ]
    assert names(folder.pending("step_9.safetensors")) == ["step_10", "step_100"]
    # Between two that are still to come.
    put(tmp_path / "step_50.safetensors", 1, 1)
    assert names(folder.pending("step_10.safetensors")) == ["step_50", "step_100"]
    assert folder.pending("step_100.safetensors") == []


def test_a_name_that_jumps_the_order_is_refused_until_it_is_gone(tmp_path: Path) -> None:
    folder = FollowedFolder(tmp_path)
    put(tmp_path / "b.safetensors", 1, 1)
    assert folder.pending("b.safetensors") == []
    late = put(tmp_path / "a.safetensors", 1, 1)
    for _ in range(2):
        words = f"{tmp_path}: 'a.safetensors' jumps the order: expected a name after 'b.safe"
        with pytest.raises(WeightsError, match=words):
            folder.pending("b.safetensors")
    late.unlink()
    put(tmp_path / "c.safetensors", 1, 1)
    assert names(folder.pending("b.safetensors")) == ["c"]


def test_several_files_are_one_change_in_which_later_rows_win(tmp_path: Path) -> None:
    put(tmp_path / "1.safetensors", 1, 1, 2, 3)
    # A folder of two ranks' files is one change too.
    put(tmp_path / "2" / "rank_0.safetensors", 2, 3, removed=(1,))
    put(tmp_path / "2" / "rank_1.safetensors", 2, 4)
    put(tmp_path / "3.safetensors", 3, 4, 5)
    folder = FollowedFolder(tmp_path)
    changed = folder.read(folder.pending())["item"]
    assert changed.values is not None
    rows = dict(zip(changed.ids.tolist(), changed.values[:, 0].tolist(), strict=True))
    assert rows == {2: 1, 3: 2, 4: 3, 5: 3} and changed.removed.tolist() == [1]
    assert folder.read([]) == {}


def test_a_damaged_file_is_named_and_nothing_is_returned(tmp_path: Path) -> None:
    put(tmp_path / "1.safetensors", 1, 1)
    (tmp_path / "2.safetensors").write_bytes(b"half of a file")
    folder = FollowedFolder(tmp_path)
    with pytest.raises(WeightsError, match=r"2.safetensors: not a readable safetensors file"):
        folder.read(folder.pending())
    (tmp_path / "2.safetensors").unlink()
    (tmp_path / "notes.txt").touch()
    with pytest.raises(WeightsError, match=r"notes.txt: expected a file of changed rows"):
        folder.read(folder.pending())


def test_a_folder_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match=f"{tmp_path}/none: cannot be read: No such file"):
        FollowedFolder(tmp_path / "none").pending()
