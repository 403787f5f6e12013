"""The house as ARCHITECTURE.md shows it: every room is named there, and none is too full."""

import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("kernels", "quant", "sharded_infer", "serving", "benchmarks")
MOST_MODULES = 15


def _folders() -> set[str]:
    return {
        str(init.parent.relative_to(ROOT))
        for package in PACKAGES
        for init in (ROOT / package).rglob("__init__.py")
    }


def _rooms_of_the_page() -> list[str]:
    """The rooms of the table, each with the folders below it."""
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in (ROOT / "ARCHITECTURE.md").read_text().splitlines()
        if line.startswith("| `")
    ]
    rooms = []
    for room, _, below in rows:
        name = room.strip("`")
        rooms.append(name)
        rooms += [f"{name}/{folder.strip(' `')}" for folder in below.split(",") if folder]
    return rooms


def test_the_architecture_page_is_short() -> None:
    assert len((ROOT / "ARCHITECTURE.md").read_text().splitlines()) <= 90


def test_the_table_of_rooms_is_the_list_of_folders() -> None:
    rooms = _rooms_of_the_page()
    assert sorted(rooms) == sorted(_folders())


def test_no_room_holds_more_than_fifteen_modules() -> None:
    counts = {
        folder: sum(path.name != "__init__.py" for path in (ROOT / folder).glob("*.py"))
        for folder in _folders()
    }
    assert {folder: count for folder, count in counts.items() if count > MOST_MODULES} == {}


def test_every_native_source_is_of_an_extension_and_so_in_the_source_distribution() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extensions = project["tool"]["setuptools"]["ext-modules"]
    listed = {source for extension in extensions for source in extension["sources"]}
    files = (*ROOT.glob("native/*/*.cpp"), *ROOT.glob("native/third_party/*/*.c"))
    sources = {path.relative_to(ROOT).as_posix() for path in files}
    # setup.py adds the load generator, if asked, and all headers.
    load = {"native/abi/serving_bench_layout.cpp", "native/load/http2_load.cpp"}
    assert sources - load == listed


def test_every_folder_of_python_files_is_a_package() -> None:
    holding = {
        str(path.parent.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
    }
    assert holding == _folders()
