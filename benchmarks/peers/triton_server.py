"""Triton with TorchRec's quantized DLRM-v2 behind its Python backend, started and stopped.

The `nvidia-pytriton` package, in a folder with an older NumPy, contains Triton's server. Only its
programs and libraries are used.
"""

import os
import re
import shutil
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from serving.bench.load.process import split_cpus
from serving.bench.load.target import Target
from serving.bench.servers.server_under_test import ServerUnderTest
from serving.bench.workloads.dlrm_v2 import DENSE_WIDTH, IDS_OF_A_BAG, dlrm_v2
from serving.bench.workloads.workload import Workload
from sharded_infer.errors import InputError, ShardedInferError

PACKAGE = "nvidia-pytriton==0.7.0"
# Its Python backend reads NumPy 2's arrays as empty.
NUMPY = "numpy==1.26.4"
DEFAULT_FOLDER = Path("build/triton")
_START_SECONDS = 300.0
_STOP_SECONDS = 60.0
_CALL_SECONDS = 60.0
_CHECKED_PAIRS = 3
_MAX_BATCH = 2048
_LOG_LINES = 15
_ERROR = re.compile(r"E\d{4} |error|Traceback| +File|[A-Za-z]+Error")


def model_name(dense: str) -> str:
    """Name of the model whose dense parts are in a dtype."""
    return f"torchrec-{dense}"


@contextmanager
def triton_serving(folder: Path, denses: Sequence[str], max_rows: int) -> Iterator[ServerUnderTest]:
    """Run Triton, unpacked in a folder, with a model for each dense dtype, "fp32" or "bf16"."""
    server, stub = _programs(folder)
    with tempfile.TemporaryDirectory(prefix="sharded-infer-triton-") as name:
        work = Path(name)
        _lay_out(work, folder, stub, denses, max_rows)
        port = _free_port()
        command = [str(server), f"--model-repository={work / 'models'}"]
        command += [f"--backend-directory={work / 'backends'}", f"--grpc-port={port}"]
        command += ["--grpc-address=127.0.0.1", "--allow-http=false", "--allow-metrics=false"]
        with (
            (work / "log").open("w+") as log,
            subprocess.Popen(  # noqa: S603 - our own command
                command,
                env=_environment(folder),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            ) as process,
        ):
            try:
                os.sched_setaffinity(process.pid, split_cpus()[0])
                _wait_until_ready(process, port, work / "log")
                _check_scores(port, denses, dlrm_v2(max_rows))
                yield ServerUnderTest(Target("127.0.0.1", port), None, process.pid)
            finally:
                process.terminate()
                try:
                    process.wait(_STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()


def _check_scores(port: int, denses: Sequence[str], workload: Workload) -> None:
    """Raise ShardedInferError if Triton's answers are not scores, since doing nothing is fast."""
    [request] = workload.messages(_CHECKED_PAIRS, 1)
    message = service_pb2.ModelInferRequest.FromString(request)
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for dense in denses:
            message.model_name = model_name(dense)
            try:
                [raw] = stub.ModelInfer(message, timeout=_CALL_SECONDS).raw_output_contents
            except grpc.RpcError as error:
                raise ShardedInferError(f"Triton, {message.model_name}: {error}") from error
            scores = np.frombuffer(raw, np.float32)
            if len(scores) != _CHECKED_PAIRS or not np.isfinite(scores).all():
                raise ShardedInferError(
                    f"Triton, {message.model_name}: expected {_CHECKED_PAIRS} scores, got {scores}"
                )


def _programs(folder: Path) -> tuple[Path, Path]:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    inside = folder / "pytriton" / "tritonserver"
    server = inside / "bin" / "tritonserver"
    stub = inside / "python_backend_stubs" / version / "triton_python_backend_stub"
    if not server.is_file() or not (folder / "numpy").is_dir():
        raise InputError(
            f"{folder}: Triton is not there: run `make triton`, or "
            f"`pip install --no-deps --target {folder} {PACKAGE} {NUMPY}`"
        )
    if not stub.is_file():
        raise InputError(f"{stub}: {PACKAGE} has no Python backend for Python {version}")
    library = sysconfig.get_config_var("INSTSONAME") or ""
    if ".so" not in library:
        raise InputError(
            f"Triton's Python backend loads libpython{version}.so: this Python was built without "
            "it (--enable-shared)"
        )
    return server, stub


def _environment(folder: Path) -> dict[str, str]:
    libraries = [
        str((folder / "nvidia_pytriton.libs").resolve()),
        sysconfig.get_config_var("LIBDIR"),
    ]
    return {
        **os.environ,
        "LD_LIBRARY_PATH": os.pathsep.join(libraries),
        "OMP_NUM_THREADS": "1",
    }


def _model_source(folder: Path) -> str:
    """The model's file, which sets the path, since Triton's backend does not read PYTHONPATH."""
    places = [str(folder.resolve()), str(Path(__file__).parents[2]), *filter(None, sys.path)]
    return (
        f"import sys\nsys.path[:] = {places!r} + sys.path\n"
        "from benchmarks.peers.triton_model import TritonPythonModel\n"
    )


def _lay_out(work: Path, folder: Path, stub: Path, denses: Sequence[str], max_rows: int) -> None:
    """Write the model repository, and a backend with the program for this Python's version."""
    backend = work / "backends" / "python"
    shutil.copytree(folder / "pytriton" / "tritonserver" / "backends" / "python", backend)
    shutil.copy(stub, backend / stub.name)
    for dense in denses:
        model = work / "models" / model_name(dense)
        (model / "1").mkdir(parents=True)
        (model / "1" / "model.py").write_text(_model_source(folder))
        (model / "config.pbtxt").write_text(_configuration(dense, max_rows))


def _configuration(dense: str, max_rows: int) -> str:
    """A model's configuration; Triton batches waiting requests."""
    inputs = [f'{{ name: "dense", data_type: TYPE_FP32, dims: [ {DENSE_WIDTH} ] }}']
    inputs += [
        f'{{ name: "C{number}", data_type: TYPE_INT64, dims: [ {ids} ] }}'
        for number, ids in enumerate(IDS_OF_A_BAG)
    ]
    return f"""name: "{model_name(dense)}"
backend: "python"
max_batch_size: {_MAX_BATCH}
dynamic_batching {{ }}
instance_group [ {{ kind: KIND_CPU, count: 1 }} ]
input [ {", ".join(inputs)} ]
output [ {{ name: "score", data_type: TYPE_FP32, dims: [ 1 ] }} ]
parameters [
  {{ key: "dense", value: {{ string_value: "{dense}" }} }},
  {{ key: "max_rows", value: {{ string_value: "{max_rows}" }} }}
]
"""


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + _START_SECONDS
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        while time.monotonic() < deadline and process.poll() is None:
            try:
                if stub.ServerReady(service_pb2.ServerReadyRequest(), timeout=1.0).ready:
                    return
            except grpc.RpcError:
                pass
            time.sleep(0.2)
    state = "ended" if process.poll() is not None else f"was not ready in {_START_SECONDS:g} s"
    lines = log.read_text(errors="replace").splitlines()
    told = [line for line in lines if _ERROR.match(line)] or lines
    raise ShardedInferError("\n".join([f"Triton {state}; its log:", *told[-_LOG_LINES:]]))
