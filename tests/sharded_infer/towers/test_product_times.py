"""All processes of a machine take one ratio, that of the first."""

import threading
from pathlib import Path

import pytest

from sharded_infer.towers import product_times
from sharded_infer.towers.product_times import recall, remember

FOLDER = "product-times"


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDED_INFER_CACHE", str(tmp_path))
    monkeypatch.setattr(product_times, "_known", {})


def test_the_first_ratio_is_kept_by_tower_and_no_other_file_is_left(tmp_path: Path) -> None:
    assert recall("tower") is None
    assert remember("tower", 0.5) == recall("tower") == 0.5
    assert remember("tower", 2.0) == recall("tower") == 0.5
    assert recall("another tower") is None
    (kept,) = (tmp_path / FOLDER).iterdir()
    assert kept.read_text() == "0.500\n"


def test_processes_that_time_a_tower_at_once_take_the_same_ratio(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Threads under numbers of processes of their own.
    monkeypatch.setattr(product_times.os, "getpid", threading.get_native_id)
    taken: list[float] = []
    begin = threading.Barrier(8)

    def time_it(ratio: float) -> None:
        begin.wait()
        taken.append(remember("tower", ratio))

    threads = [threading.Thread(target=time_it, args=(0.5 + number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(taken) == 8 and len(set(taken)) == 1


def test_a_ratio_in_a_folder_that_cannot_be_written_holds_in_this_process(tmp_path: Path) -> None:
    (tmp_path / FOLDER).write_text("no folder")
    assert remember("tower", 0.75) == recall("tower") == 0.75


def test_a_ratio_of_a_user_without_a_home_holds_in_this_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("SHARDED_INFER_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    assert recall("tower") is None
    assert remember("tower", 0.75) == recall("tower") == 0.75


def test_a_damaged_file_is_no_ratio(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remember("tower", 0.5)
    (kept,) = (tmp_path / FOLDER).iterdir()
    kept.write_text("half")
    monkeypatch.setattr(product_times, "_known", {})
    assert recall("tower") is None
