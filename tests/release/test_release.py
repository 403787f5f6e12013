"""A release's files: what is in them, what they need, and whose they are."""

import hashlib
import importlib.metadata
import json
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from elftools.elf.elffile import ELFFile

from release.commands import ReleaseError
from release.openssl import VERSION
from release.sdist import build_sdist
from release.source_tree import copied_tree, project_version
from release.toolchain import Processor
from release.wheel import check_wheel
from tests.support.released import ASKS_FOR_RELEASE, released, released_wheel

ROOT = Path(__file__).parents[2]
PACKAGES = ("kernels", "quant", "sharded_infer", "serving")
# Those of the C library: every Linux has them.
SYSTEM = {"libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "ld-linux-x86-64.so.2"}
# Each instruction set of each kernel, beside the references.
KERNEL_TESTS = (
    "tests/kernels/test_dense_step.py",
    "tests/kernels/test_pooled_lookup.py",
    "tests/quant/test_native_encoder.py",
)

pytestmark = ASKS_FOR_RELEASE


@pytest.fixture(scope="module")
def wheel() -> Iterator[zipfile.ZipFile]:
    with zipfile.ZipFile(released_wheel()) as opened:
        yield opened


@pytest.fixture(scope="module")
def libraries(wheel: zipfile.ZipFile) -> dict[str, bytes]:
    return {f"{package}/_native.so": wheel.read(f"{package}/_native.so") for package in PACKAGES}


def test_a_wheel_is_for_every_python_and_says_so(wheel: zipfile.ZipFile) -> None:
    version = project_version()
    assert released_wheel().name == f"sharded_infer-{version}-py3-none-manylinux_2_28_x86_64.whl"
    told = wheel.read(f"sharded_infer-{version}.dist-info/WHEEL").decode()
    assert "Tag: py3-none-manylinux_2_28_x86_64\n" in told
    assert [name for name in wheel.namelist() if name.endswith(".so") and "cpython" in name] == []


def test_compiled_parts_need_the_c_library_alone(libraries: dict[str, bytes]) -> None:
    for name, content in libraries.items():
        dynamic = ELFFile(BytesIO(content)).get_section_by_name(".dynamic")
        needed = {tag.needed for tag in dynamic.iter_tags("DT_NEEDED")}
        assert needed <= SYSTEM, name


def test_compiled_parts_show_the_functions_that_python_calls_and_no_others(
    libraries: dict[str, bytes],
) -> None:
    for name, content in libraries.items():
        symbols = ELFFile(BytesIO(content)).get_section_by_name(".dynsym").iter_symbols()
        shown = {s.name for s in symbols if s["st_shndx"] != "SHN_UNDEF" and s.name}
        assert shown and all(one.startswith("sharded_infer_") for one in shown), name


def test_compiled_parts_have_no_path_of_the_machine_that_built_them(
    libraries: dict[str, bytes],
) -> None:
    places = {str(ROOT), str(Path.home()), sys.prefix, sys.base_prefix, gettempdir()}
    for name, content in libraries.items():
        assert [place for place in places if place.encode() in content] == [], name
        assert ELFFile(BytesIO(content)).get_section_by_name(".symtab") is None, name


def test_a_wheel_that_needs_what_systems_lack_is_refused(tmp_path: Path) -> None:
    library, wheel = tmp_path / "lib.so", tmp_path / released_wheel().name
    # Of glibc 2.34: libpthread has become a part of libc there.
    source = "int pthread_create(); int f() { return pthread_create(); }"
    words = ["gcc", "-shared", "-fPIC", "-x", "c", "-", "-o", str(library)]
    subprocess.run(words, input=source, text=True, check=True)
    with zipfile.ZipFile(released_wheel()) as good, zipfile.ZipFile(wheel, "w") as bad:
        for name in good.namelist():
            bad.writestr(name, library.read_bytes() if name.endswith(".so") else good.read(name))
    with pytest.raises(ReleaseError, match="auditwheel says manylinux_2_34_x86_64"):
        check_wheel(wheel, Processor.X86_64)


def test_licences_of_all_parts_are_in_the_wheel(wheel: zipfile.ZipFile, sbom: Any) -> None:
    for part in _parts(sbom):
        (property_,) = part["properties"]
        (name,) = (n for n in wheel.namelist() if n.endswith(f"licenses/{property_['value']}"))
        assert len(wheel.read(name)) > 500
    assert len(_parts(sbom)) == 7


@pytest.fixture(scope="module")
def sbom() -> Any:
    (file,) = released().glob("*.cdx.json")
    return json.loads(file.read_text())


def _parts(sbom: Any) -> list[Any]:
    return [
        one
        for one in sbom["components"]
        if any(p["name"].endswith("licence-file") for p in one.get("properties", ()))
    ]


def test_the_sbom_follows_its_schema(sbom: Any) -> None:
    (file,) = released().glob("*.cdx.json")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(file.read_text()) is None
    assert sbom["metadata"]["component"]["version"] == project_version()


def test_the_sbom_has_the_libraries_that_the_compiled_parts_say_they_are(
    sbom: Any, libraries: dict[str, bytes]
) -> None:
    versions = {part["name"]: part["version"] for part in _parts(sbom)}
    serving = libraries["serving/_native.so"]
    assert versions["openssl"] == VERSION
    assert re.search(rb"OpenSSL ([\d.]+) ", serving)[1].decode() == VERSION  # type: ignore[index]
    assert versions["nghttp2"].encode() in serving


def test_the_sbom_has_the_wheels_hash_and_what_it_asks_pip_for(sbom: Any) -> None:
    components = {one["name"]: one for one in sbom["components"]}
    (digest,) = components[released_wheel().name]["hashes"]
    assert digest["content"] == hashlib.sha256(released_wheel().read_bytes()).hexdigest()
    told = {p["value"] for one in components.values() for p in one.get("properties", ())}
    needed = importlib.metadata.requires("sharded-infer") or []
    assert {line for line in needed if "extra ==" not in line} <= told


def test_checksums_are_those_of_all_files() -> None:
    lines = (released() / "SHA256SUMS").read_text().splitlines()
    told = dict(reversed(line.split("  ")) for line in lines)
    there = {f.name: f for f in released().iterdir() if f.name != "SHA256SUMS"}
    assert told == {n: hashlib.sha256(f.read_bytes()).hexdigest() for n, f in there.items()}


def test_a_source_distribution_is_the_same_each_time(tmp_path: Path) -> None:
    (archive,) = released().glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        members = opened.getmembers()
    with copied_tree() as sources:
        again = build_sdist(sources, tmp_path, int(members[0].mtime))
    assert again.read_bytes() == archive.read_bytes()


def test_the_wheels_kernels_have_the_bits_of_the_references(
    wheel: zipfile.ZipFile, tmp_path: Path
) -> None:
    wheel.extractall(tmp_path)  # noqa: S202 - ours
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    tests = (
        "-m",
        "pytest",
        "-q",
        "-n",
        "0",
        "-p",
        "no:cacheprovider",
        "-m",
        "not rest and not slow",
    )
    places = ("-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path), *KERNEL_TESTS)
    done = subprocess.run(
        [sys.executable, *tests, *places],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert int(re.search(r"(\d+) passed", done.stdout)[1]) > 100  # type: ignore[index]
