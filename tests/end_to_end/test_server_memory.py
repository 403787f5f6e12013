"""What a server says that it will hold, what it holds by `/proc/PID/smaps`, and what it loads."""

import re
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
import torch

from serving.bench.workloads.dlrm_v2 import dlrm_v2
from serving.bench.workloads.workload import equal_tables
from sharded_infer.repositories.repository import Repository
from sharded_infer.specs.precision import Precision
from sharded_infer.towers.lowering.int8_packing import has_exact_int8
from tests.support.servers import RunningServer, publish_ranker, running_server

METHOD = "/inference.GRPCInferenceService/ModelInfer"
# A server may hold so much beside tables that it copied and twice its tower's file.
BESIDE = 250e6
SAID = re.compile(r"takes ([\d.]+ \w+) of memory: its tables ([\d.]+ \w+) .* holds ([\d.]+ \w+) w")
UNITS = {"B": 1.0, "kB": 1e3, "MB": 1e6, "GB": 1e9}
PRECISION = Precision.INT8 if has_exact_int8() else Precision.BF16
DLRM = dlrm_v2(max_rows=100_000, precision=PRECISION)
WIDE = equal_tables(
    "wide", tables=8, rows=1000, dim=64, ids=2, layers=(2048, 4096, 1024),
    precision=Precision.FP32,
)  # fmt: skip
pytestmark = [
    pytest.mark.skipif(
        not torch.backends.mkldnn.is_available(),  # type: ignore[no-untyped-call]
        reason="other kernels hold other memory",
    ),
    pytest.mark.skipif(not Path("/proc/self/smaps").exists(), reason="needs Linux's account"),
]


@dataclass(frozen=True, slots=True)
class Case:
    """A model to serve; `message` is a request of so many samples, None if it is not asked."""

    publish: Callable[[Path], object]
    memory: str
    message: Callable[[int], bytes] | None = None


CASES = {
    "small": Case(publish_ranker, "map"),
    "dlrm": Case(DLRM.publish, "huge", lambda samples: DLRM.messages(samples, 1)[0]),
    "wide": Case(WIDE.publish, "map", lambda samples: WIDE.messages(samples, 1)[0]),
}


def anonymous(process: int) -> float:
    """Bytes of a process that are no file's."""
    lines = Path(f"/proc/{process}/smaps").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Anonymous:")) * 1024.0


def number(said: str) -> float:
    value, unit = said.split()
    return float(value) * UNITS[unit]


def ask(server: RunningServer, message: Callable[[int], bytes]) -> None:
    """Requests of every size that clients like, eight at once."""
    sizes = (1, 2, 3, 10, 17, 40, 64, 100, 200, 270, 512, 1000, 2048)
    messages = [message(size) for size in sizes]
    unbounded = [("grpc.max_receive_message_length", -1)]
    with ExitStack() as stack:
        calls = [
            stack.enter_context(grpc.insecure_channel(server.grpc_url, unbounded)).unary_unary(
                METHOD
            )
            for _ in range(8)
        ]
        for sent in messages:
            for answer in [call.future(sent, timeout=120) for call in calls]:
                answer.result()


@pytest.mark.parametrize("name", CASES)
def test_a_server_holds_what_it_said_and_no_more_than_it_may(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    models = tmp_path / "models"
    case.publish(models)
    repository = Repository(models)
    manifest = repository.open(repository.models()[0]).manifest
    tower = manifest.files[manifest.tower.file].bytes
    options = ("--memory", case.memory)
    with running_server(models, tmp_path / "log", *options, forked=False) as server:
        process = server.process.pid
        log = (tmp_path / "log").read_text()
        said = SAID.search(log)
        assert said is not None, log
        takes, tables, before = map(number, said.groups())
        copied = tables if case.memory == "huge" else 0.0
        held = anonymous(process)
        assert held <= copied + 2 * tower + BESIDE
        estimated = takes + before - (tables - copied)
        assert 0.8 * held < estimated < 1.2 * held
        # torch's compiler, and Triton's library with it, is for those who compile.
        assert "libtriton" not in Path(f"/proc/{process}/maps").read_text()
        if case.message is None:
            return
        ask(server, case.message)
        # What the load took goes back when the server is idle.
        deadline = time.monotonic() + 60.0
        while anonymous(process) > copied + 2 * tower + BESIDE:
            assert time.monotonic() < deadline, f"{anonymous(process) / 1e6:.0f} MB are held"
            time.sleep(0.5)
