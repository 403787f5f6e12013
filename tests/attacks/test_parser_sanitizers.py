"""Compiled readers, lookups and their answers, built with sanitizers, under their own tests."""

import os
import subprocess
import sys
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FLAGS = ("-std=c++17", "-O1", "-g1", "-fPIC", "-pthread", "-fno-sanitize-recover=all", "-w")
LONG = os.environ.get("SHARDED_INFER_SOAK") == "1"
_SECONDS = 400.0
# Random and mutated messages.
TESTS = (
    "tests/serving/inference/test_mutated_calls.py",
    "tests/serving/protocol/readers",
    "tests/serving/protocol/lookups",
    "tests/serving/http_api/test_taken_calls.py",
    "tests/serving/shard_host/test_compiled_lookups.py",
    "tests/attacks/test_messages.py",
    "tests/attacks/test_strings.py",
)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled code of `serving` with the address and undefined-behaviour sanitizers."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    modules = project["tool"]["setuptools"]["ext-modules"]
    (sources,) = (module["sources"] for module in modules if module["name"] == "serving._native")
    folder = tmp_path_factory.mktemp("sanitized")
    flags = [*FLAGS, "-fsanitize=address,undefined", "-Inative"]
    objects = [folder / f"{number}.o" for number in range(len(sources))]

    def compiled(source: str, path: Path) -> None:
        language = "c" if source.endswith(".c") else "c++"
        command = ["g++", *flags, "-x", language, "-c", source, "-o", str(path)]
        subprocess.run(command, cwd=ROOT, timeout=_SECONDS, check=True)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compiled, sources, objects))
    path = folder / "_native.so"
    command = ["g++", *flags, "-shared", *map(str, objects), "-o", str(path), "-ldl"]
    subprocess.run(command, cwd=ROOT, timeout=_SECONDS, check=True)
    return path


@pytest.mark.timeout(4 * 3600 if LONG else 2 * _SECONDS)
def test_readers_and_lookups_meet_no_fault_that_a_sanitizer_finds(library: Path) -> None:
    # Torch throws C++ exceptions too, which the sanitizer's runtime passes on.
    runtimes = [
        subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()
        for words in (
            ("g++", "-print-file-name=libasan.so"),
            ("g++", "-print-file-name=libstdc++.so"),
        )
    ]
    environment = {
        **os.environ,
        "SANITIZED_LIBRARY": str(library),
        "LD_PRELOAD": ":".join(runtimes),
        # Python and torch keep memory until they end.
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        "OMP_NUM_THREADS": "1",
    }
    words = (
        *(sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"),
        *("-p", "tests.support.sanitized_library", "--timeout=300", *TESTS),
        # With the output of tests that pass.
        *(("-n", "2", "-rP") if LONG else ()),
    )
    done = subprocess.run(
        words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
        timeout=4 * 3600 if LONG else _SECONDS,
    )  # fmt: skip
    print(done.stdout)  # noqa: T201 - counts of the long form
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
