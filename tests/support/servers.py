"""The command, a published model and running servers, for every test that needs a server."""

import io
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import grpc
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from tritonclient.grpc import service_pb2, service_pb2_grpc

import serving.cli
from kernels.row_format import RowFormat
from sharded_infer import (
    DenseSpec,
    Model,
    ModelSpec,
    QuantizationSpec,
    TableSpec,
    TowerSpec,
    open_model,
    publish,
)
from sharded_infer.specs.default_row import DefaultRow
from sharded_infer.specs.release_spec import ReleaseSpec
from tests.support.forked_command import ForkedProcess, command_forker, environment

Arrays = Mapping[str, NDArray[np.generic]]
CommandProcess = subprocess.Popen[str] | ForkedProcess
MODEL = "ranker"
DENSE_WIDTH = 4
DATATYPES = {"float32": "FP32", "int64": "INT64", "int32": "INT32"}
_START_SECONDS = 120.0
_STOP_SECONDS = 60.0


# The publisher's note on the ranker; pages must escape its markup.
PROVENANCE = {"note": "nightly <b>[red]", "run_id": "mlflow/7", "source_revision": "4f2a9c1"}
PROVENANCE_TEXT = "note nightly <b>[red]; run mlflow/7; source 4f2a9c1"


class RankerTower(nn.Module):
    """Two heads over one hidden layer: a score `[B]` and three labels `[B, 3]`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(DENSE_WIDTH + width, 16)
        self.score = nn.Linear(16, 1)
        self.labels = nn.Linear(16, 3)

    def forward(self, dense: Tensor, embeddings: Tensor) -> dict[str, Tensor]:
        hidden = torch.relu(self.hidden(torch.cat([dense, embeddings], dim=1)))
        score = torch.sigmoid(self.score(hidden)).squeeze(1)
        return {"score": score, "labels": self.labels(hidden)}


def ranker_spec() -> ModelSpec:
    """Every policy, both poolings, two formats, several dims, and a table of two features."""
    return ModelSpec(
        name=MODEL,
        tables=(
            TableSpec("user", 50, 8),
            TableSpec(
                "item", 97, 16, pooling="mean", features=("item", "history"), out_of_range="ignore"
            ),
            TableSpec("category", 13, 4, format=RowFormat.BF16, out_of_range="modulo"),
            TableSpec("brand", 20, 12, pooling="mean", format=RowFormat.BF16),
        ),
        dense=DenseSpec({"dense": DENSE_WIDTH}),
        tower=TowerSpec(outputs=("score", "labels")),
        quantization=QuantizationSpec(format=RowFormat.INT8),
    )


@dataclass(frozen=True, slots=True)
class Ranker:
    repository: Path
    model: Model
    tables: dict[str, nn.EmbeddingBag]
    tower: RankerTower

    def predict(self, inputs: Arrays) -> dict[str, NDArray[np.float32]]:
        """Score a request here, with one intra-op thread as in the server."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return self.model.predict(inputs)
        finally:
            torch.set_num_threads(threads)


def publish_ranker(
    repository: Path,
    seed: int = 5,
    name: str = MODEL,
    topology: str = "cpu:2",
    *,
    release: ReleaseSpec | None = None,
    change: Callable[[RankerTower], object] = lambda tower: None,
    default_row: DefaultRow = None,
) -> Ranker:
    """Publish the ranker, planned for two ranks; another seed gives it other scores."""
    spec = replace(ranker_spec(), name=name, release=release or ReleaseSpec())
    tables = tuple(replace(table, default_row=default_row) for table in spec.tables)
    spec = replace(spec, tables=tables)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        tables = {
            t.name: nn.EmbeddingBag(t.rows, t.dim, mode=t.pooling or "sum") for t in spec.tables
        }
        tower = RankerTower(spec.embedding_width)
    with torch.no_grad():
        change(tower)
    published = publish(spec, tables, tower, repository, topologies=(topology,), **PROVENANCE)
    return Ranker(repository, open_model(published.path), tables, tower)


def good_inputs(batch: int, seed: int = 0) -> dict[str, NDArray[np.generic]]:
    """A request that uses every input in one form or another."""
    generator = np.random.default_rng(seed)
    lengths = generator.integers(0, 4, batch, dtype=np.int32)
    return {
        "dense": generator.standard_normal((batch, DENSE_WIDTH), dtype=np.float32),
        "user": generator.integers(0, 50, batch),
        "item": generator.integers(0, 97, (batch, 1)),
        "history": generator.integers(0, 97, int(lengths.sum())),
        "history.lengths": lengths,
        "category": generator.integers(0, 13, (batch, 3)),
        "category.weights": generator.random((batch, 3), dtype=np.float32),
        "brand": generator.integers(0, 20, batch, dtype=np.int32),
    }


def infer_request(inputs: Arrays, *, model: str = MODEL, request_id: str = "") -> Any:
    tensor = service_pb2.ModelInferRequest.InferInputTensor
    return service_pb2.ModelInferRequest(
        model_name=model,
        id=request_id,
        inputs=[
            tensor(name=name, datatype=DATATYPES[array.dtype.name], shape=array.shape)
            for name, array in inputs.items()
        ],
        raw_input_contents=[array.tobytes() for array in inputs.values()],
    )


def json_inputs(inputs: Arrays) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "datatype": DATATYPES[array.dtype.name],
            "shape": list(array.shape),
            "data": array.ravel().tolist(),
        }
        for name, array in inputs.items()
    ]


def check_bits(found: Mapping[str, Any], expected: Arrays) -> None:
    assert found.keys() == expected.keys()
    for name, scores in expected.items():
        np.testing.assert_array_equal(found[name], scores)


def scores_of(response: Any) -> dict[str, NDArray[np.float32]]:
    return {
        output.name: np.frombuffer(raw, "<f4").reshape(output.shape)
        for output, raw in zip(response.outputs, response.raw_output_contents, strict=True)
    }


@dataclass(slots=True)
class RunningServer:
    process: CommandProcess
    grpc_url: str
    metrics_url: str
    log: Path
    ready: dict[str, Any] = field(repr=False)

    @property
    def http_url(self) -> str:
        return self.metrics_url.removesuffix("/metrics")

    @property
    def http_address(self) -> str:
        """`host:port`, as NVIDIA's client for HTTP takes it."""
        return self.http_url.partition("://")[2]

    @contextmanager
    def stub(self) -> Iterator[Any]:
        """The protocol's generated stub on a separate connection."""
        # Channels of one process otherwise share connections, and their state.
        options = [("grpc.use_local_subchannel_pool", 1)]
        with grpc.insecure_channel(self.grpc_url, options=options) as channel:
            yield service_pb2_grpc.GRPCInferenceServiceStub(channel)


def command(*words: object, program: str | None = None) -> list[str]:
    run_by = ("-m", "serving.cli") if program is None else ("-c", program)
    return [sys.executable, *run_by, *map(str, words)]


def start_command(
    *words: object,
    stderr: IO[str],
    stdin: IO[str] | None = None,
    forked: bool = True,
    program: str | None = None,
) -> CommandProcess:
    """Start a command with its output in a pipe.

    Args:
        stdin: None: this process's.
        forked: from a process that has imported it.
        program: Python that breaks something first, and runs the command itself. Changed objects
            must be looked up at their use: every module has been imported.
    """
    asked = environment()
    if not (forked and command_forker().fits(asked)):
        line = command(*words, program=program)
        return subprocess.Popen(
            line, stdin=stdin, stdout=subprocess.PIPE, stderr=stderr, text=True, env=asked
        )
    read, write = os.pipe()
    try:
        streams = ((stdin or sys.__stdin__).fileno(), write, stderr.fileno())
        read_here = os.fdopen(read)
        return command_forker().start([str(w) for w in words], asked, streams, read_here, program)
    finally:
        os.close(write)


@contextmanager
def killed_at_end(process: CommandProcess) -> Iterator[CommandProcess]:
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def run(
    *words: object,
    stdin: str | None = None,
    seconds: float = 120.0,
    forked: bool = True,
    program: str | None = None,
) -> "subprocess.CompletedProcess[str]":
    """Run a command to its end, killed after `seconds`; arguments are those of `start_command`."""
    asked = environment()
    if not (forked and command_forker().fits(asked)):
        return subprocess.run(
            command(*words, program=program),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
            env=asked,
        )
    with ExitStack() as stack:
        streams = [stack.enter_context(TemporaryFile("w+")) for _ in range(3)]
        given, out, err = streams
        given.write(stdin or "")
        given.seek(0)
        descriptors = (given.fileno(), out.fileno(), err.fileno())
        process = command_forker().start(
            [str(word) for word in words], asked, descriptors, program=program
        )
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        for stream in (out, err):
            stream.seek(0)
        return subprocess.CompletedProcess(process.args, code, out.read(), err.read())


@dataclass(frozen=True, slots=True)
class Done:
    code: int
    out: str
    err: str

    def json(self) -> Any:
        assert self.code == 0, self.err
        return json.loads(self.out)

    def refused(self, *words: object) -> None:
        """Check for exit code 1 and one line of errors that contains the words."""
        assert (self.code, self.out) == (1, ""), (self.code, self.out, self.err)
        assert self.err.startswith("error: ") and self.err.count("\n") == 1, self.err
        assert [word for word in words if str(word) not in self.err] == [], self.err


Command = Callable[..., Done]


@pytest.fixture
def sharded_infer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Command]:
    """Run the command in this process, as its entry point does."""
    threads = torch.get_num_threads()
    priority = os.getpriority(os.PRIO_PROCESS, 0)
    # pytest-xdist sets 80, which would cut tables.
    monkeypatch.delenv("COLUMNS", raising=False)

    def call(*words: object, stdin: str = "", main: Callable[[], None] = serving.cli.main) -> Done:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["sharded-infer", *map(str, words)])
        monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        try:
            main()
            code: object = 0
        except SystemExit as exited:
            code = exited.code or 0
        printed = capsys.readouterr()
        assert isinstance(code, int)
        return Done(code, printed.out, printed.err)

    yield call
    torch.set_num_threads(threads)
    # Not everybody can raise it again: later tests and their servers would keep it.
    assert os.getpriority(os.PRIO_PROCESS, 0) == priority, "publish changes here with --nice 0"


@contextmanager
def running_server(
    repository: Path | str,
    log: Path,
    *options: object,
    exit_code: int | None = 0,
    forked: bool = True,
    program: str | None = None,
) -> Iterator[RunningServer]:
    """Run `sharded-infer serve` in the context, from when it is ready.

    The last of equal options wins. A test that ends it otherwise expects None as exit code. Without
    `forked` it shares no memory; `program` is that of `start_command`.
    """
    ports = ("--host", "127.0.0.1", "--port", 0, "--http-port", 0)
    words = ("serve", "-r", repository, *ports, "--json", "--grace-seconds", 0, *options)
    with log.open("w") as errors:
        process = start_command(*words, stderr=errors, forked=forked, program=program)
    try:
        ready = read_ready(process, log)
        yield RunningServer(process, ready["grpc_url"], ready["metrics_url"], log, ready)
    finally:
        end(process)
    assert exit_code is None or process.returncode == exit_code, log.read_text()


def end(process: CommandProcess, *, is_told: bool = False) -> None:
    """End a process that may have been told to; a second signal would kill it at its end."""
    if process.poll() is None and not is_told:
        process.send_signal(signal.SIGTERM)
    try:
        process.wait(_STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    assert process.stdout is not None
    process.stdout.close()


def read_ready(process: CommandProcess, log: Path) -> dict[str, Any]:
    assert process.stdout is not None
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if select.select([process.stdout], [], [], 0.1)[0]:
            line = process.stdout.readline()
            if line.startswith("{"):
                fields: dict[str, Any] = json.loads(line)
                return fields
    raise AssertionError(f"the server was not ready: {log.read_text()}")


@pytest.fixture(scope="session")
def ranker(tmp_path_factory: pytest.TempPathFactory) -> Ranker:
    return publish_ranker(tmp_path_factory.mktemp("ranker") / "repository")


@pytest.fixture(scope="session")
def server(ranker: Ranker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    log = tmp_path_factory.mktemp("server") / "stderr"
    with running_server(ranker.repository, log) as running:
        yield running
    assert "internal error" not in log.read_text()


@pytest.fixture(scope="session")
def stub(server: RunningServer) -> Iterator[Any]:
    with server.stub() as stub:
        yield stub
