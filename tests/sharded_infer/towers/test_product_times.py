import threading
from pathlib import Path

import pytest

from sharded_infer.towers.product_times import recall, remember

FOLDER = "product-times"


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDED_INFER_CACHE", str(tmp_path))


def test_the_first_ratio_is_kept_by_tower_and_no_other_file_is_left(tmp_path: Path) -> None:
    assert recall("tower") is None
    assert remember("tower", 0.5) == recall("tower") == 0.5
    assert remember("tower", 2.0) == recall("tower") == 0.5
    assert recall("another tower") is None
    (kept,) = (tmp_path / FOLDER).iterdir()
    assert kept.read_text() == "0.500\n"


def test_processes_that_time_a_tower_at_once_take_the_same_ratio() -> None:
    taken: list[float | None] = []
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


def test_a_ratio_that_other_processes_could_not_read_is_not_used(tmp_path: Path) -> None:
    (tmp_path / FOLDER).write_text("no folder")
    assert remember("tower", 0.75) is recall("tower") is None


def test_a_user_without_a_home_has_no_ratios(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    for name in ("SHARDED_INFER_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    assert remember("tower", 0.75) is recall("tower") is None


@pytest.mark.parametrize("content", ["half", "", "nan", "inf", "0", "-1"])
def test_a_damaged_file_is_no_ratio(tmp_path: Path, content: str) -> None:
    remember("tower", 0.5)
    (kept,) = (tmp_path / FOLDER).iterdir()
    kept.write_text(content)
    assert recall("tower") is None
