import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = {"kernels", "quant", "sharded_infer", "serving"}
BENCH, NGHTTP2 = "SHARDED_INFER_BENCH", "SHARDED_INFER_NGHTTP2"
SOURCES = ROOT / "build" / "nghttp2"
# Serves from the wheel's files, and says what of libnghttp2 the process has mapped.
SERVING = """
import json
import os
import signal
import sys
import threading
from pathlib import Path
from urllib.request import urlopen

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

import serving.process.server
from serving.config.server_config import ServerConfig
from serving.transport.library import transport_library


def ask(ready):
    with grpc.insecure_channel(ready.grpc_url) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        live = stub.ServerLive(service_pb2.ServerLiveRequest(), timeout=60).live
    told = {
        "live": live,
        "transport": ready.transport,
        "http2": transport_library().http2_text(),
        "place": serving.process.server.__file__,
        "mapped": "libnghttp2.so" in Path("/proc/self/maps").read_text(),
    }
    print(json.dumps(told), flush=True)
    os.kill(os.getpid(), signal.SIGTERM)


def on_ready(ready):
    threading.Thread(target=ask, args=(ready,)).start()


config = ServerConfig(
    sys.argv[1], model_control="explicit", port=0, http_port=0, grace_seconds=0, transport="native"
)
serving.process.server.serve(config, on_ready=on_ready)
"""
# The compiled modules that an install would build.
EXTENSIONS = """
import setuptools
from distutils.core import run_setup
command = run_setup("setup.py", stop_after="commandline").get_command_obj("build_ext")
command.ensure_finalized()
for one in command.extensions:
    print(one.name, *one.depends)
"""


def built_wheel(
    tmp_path_factory: pytest.TempPathFactory, more: Mapping[str, str] = MappingProxyType({})
) -> zipfile.ZipFile:
    # Built from a copy: a build leaves folders beside its sources.
    copy = tmp_path_factory.mktemp("source")
    tracked = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],  # noqa: S607
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in filter(None, tracked.split("\0")):
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((ROOT / name).read_bytes())
    out = tmp_path_factory.mktemp("wheel")
    subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), "."],
        cwd=copy,
        env={name: text for name, text in os.environ.items() if name != BENCH} | dict(more),
        capture_output=True,
        check=True,
    )
    (path,) = out.glob("*.whl")
    return zipfile.ZipFile(path)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    return built_wheel(tmp_path_factory)


def test_the_wheel_holds_our_packages_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == PACKAGES


def test_the_wheel_holds_every_module_of_our_packages(wheel: zipfile.ZipFile) -> None:
    sources = {
        path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
    }
    assert sources <= set(wheel.namelist())


def test_the_wheel_holds_the_format_and_says_that_it_is_typed(wheel: zipfile.ZipFile) -> None:
    assert "sharded_infer/FORMAT.md" in wheel.namelist()
    assert "kernels/gpu/triton_choices.json" in wheel.namelist()
    assert "serving/http_api/openapi.json" in wheel.namelist()
    assert all(f"{package}/py.typed" in wheel.namelist() for package in PACKAGES)


def test_the_wheel_holds_the_live_page_with_its_chart_library_unchanged(
    wheel: zipfile.ZipFile,
) -> None:
    home = ROOT / "serving" / "dashboard" / "static"
    files = {p.relative_to(ROOT).as_posix() for p in home.rglob("*") if p.is_file()}
    assert len(files) > 10 and files <= set(wheel.namelist())
    table = (home / "vendor" / "README.md").read_text()
    listed = dict(re.findall(r"^\| `([^`]+)` \| `([0-9a-f]{64})` \|$", table, re.MULTILINE))
    assert set(listed) == {p.name for p in (home / "vendor").iterdir()} - {"README.md"}
    for name, expected in listed.items():
        content = wheel.read(f"serving/dashboard/static/vendor/{name}")
        assert hashlib.sha256(content).hexdigest() == expected, name
    licence = "licenses/serving/dashboard/static/vendor/LICENSE"
    assert any(name.endswith(licence) for name in wheel.namelist())


def test_the_wheel_has_the_command_and_the_licence(wheel: zipfile.ZipFile) -> None:
    (entry_points,) = [n for n in wheel.namelist() if n.endswith("entry_points.txt")]
    assert "sharded-infer = serving.cli:main" in wheel.read(entry_points).decode()
    assert any(name.endswith("licenses/LICENSE") for name in wheel.namelist())
    for folder in ("serving/native/transport/LICENSE.nghttp2", "kernels/native/LICENSE.xxhash"):
        assert any(name.endswith(f"licenses/{folder}") for name in wheel.namelist())


def test_the_wheel_pins_torch_and_fbgemm_as_a_pair(wheel: zipfile.ZipFile) -> None:
    (metadata,) = [name for name in wheel.namelist() if name.endswith("METADATA")]
    text = wheel.read(metadata).decode()
    assert "Requires-Dist: torch==2.13.*" in text
    assert "Requires-Dist: fbgemm-gpu-cpu==1.8.*" in text


def test_the_wheel_holds_the_compiled_encoder_where_there_is_a_compiler(
    wheel: zipfile.ZipFile,
) -> None:
    if shutil.which("g++") is None:
        pytest.skip("no g++ on this machine")
    assert any(name.startswith("quant/_native") for name in wheel.namelist())
    assert not any(name.endswith((".cpp", ".inc", ".h")) for name in wheel.namelist())


def test_the_wheel_leaves_the_load_generator_of_benchmarks_out(wheel: zipfile.ZipFile) -> None:
    assert not any(name.startswith("serving/bench/_native") for name in wheel.namelist())


@pytest.mark.parametrize(("asked", "is_built"), [("1", True), ("0", False), ("", False)])
def test_the_load_generator_is_built_where_it_is_asked_for(asked: str, is_built: bool) -> None:
    done = subprocess.run(
        [sys.executable, "-c", EXTENSIONS],
        cwd=ROOT,
        env={**os.environ, BENCH: asked},
        capture_output=True,
        text=True,
        check=True,
    )
    words = done.stdout.split()
    assert {"kernels._native", "quant._native", "serving._native"} <= set(words)
    assert ("serving.bench._native" in words) is is_built
    headers = {str(p.relative_to(ROOT)) for p in (ROOT / "serving/bench/native").glob("*.h")}
    assert headers <= set(words) if is_built else not headers & set(words)


def test_a_wheel_with_libnghttp2_serves_without_the_systems(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    if not SOURCES.is_dir():
        pytest.skip("make nghttp2 brings its sources")
    with built_wheel(tmp_path_factory, {NGHTTP2: str(SOURCES)}) as wheel:
        wheel.extractall(tmp_path / "site")
    (tmp_path / "repository").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", SERVING, str(tmp_path / "repository")],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["place"].startswith(str(tmp_path)) and not told["mapped"]
    assert (told["live"], told["transport"]) == (True, "native")
    version = re.search(
        r"project\(nghttp2 VERSION ([\d.]+)", (SOURCES / "CMakeLists.txt").read_text()
    )
    assert version is not None and told["http2"] == f"libnghttp2 {version[1]}, built in"


def test_sources_that_are_none_end_the_build(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "setup.py", "-q", "build_ext", "--build-lib", str(tmp_path / "lib"),
         "--build-temp", str(tmp_path / "temp")],
        cwd=ROOT,
        env={**os.environ, NGHTTP2: str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode != 0 and f"{NGHTTP2}: {tmp_path}/lib has no sources" in done.stderr
