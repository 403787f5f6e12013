"""`--memory huge` with several workers: one copy of each version, whenever it or they came."""

import os
import signal
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from torch import nn

from kernels.row_format import RowFormat
from sharded_infer import DenseSpec, ModelSpec, QuantizationSpec, TableSpec, open_model, publish
from sharded_infer.artifacts.shared_pages import why_not_shared
from tests.support.raw_ids import Sum
from tests.support.server_pages import counted
from tests.support.server_processes import children_of, workers_of
from tests.support.servers import RunningServer, infer_request, running_server, scores_of
from tests.support.waiting import until

pytestmark = pytest.mark.skipif(
    why_not_shared() != "", reason=f"this kernel cannot: {why_not_shared()}"
)
WORKERS, ROWS, DIM = 4, 200_000, 128
INPUTS = {
    "age": np.zeros((100, 1), np.float32),
    "ids": np.arange(ROWS, dtype=np.int32).reshape(100, ROWS // 100),
}


def publish_wide(repository: Path) -> Path:
    spec = ModelSpec(
        name="wide",
        tables=(TableSpec("ids", ROWS, DIM),),
        dense=DenseSpec({"age": 1}),
        quantization=QuantizationSpec(format=RowFormat.INT8),
    )
    tables = {"ids": nn.EmbeddingBag(ROWS, DIM, mode="sum")}
    return publish(spec, tables, Sum(), repository).path


def copies_of(server: RunningServer) -> dict[int, dict[int, Mapping[str, int]]]:
    """The copies that a server's processes map: by inode and process, the kernel's account."""
    found: dict[int, dict[int, Mapping[str, int]]] = {}
    for pid in (server.process.pid, *children_of(server.process.pid)):
        inode = 0
        for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
            first, _, rest = line.partition(" ")
            if not first.endswith(":"):
                fields = line.split(maxsplit=5)
                named = fields[5:] and "memfd:sharded-infer-table" in fields[5]
                inode = int(fields[4]) if named else 0
            elif inode and rest.endswith(" kB"):
                account = found.setdefault(inode, {}).setdefault(pid, {})
                account[first[:-1]] = account.get(first[:-1], 0) + 1024 * int(rest.split()[0])  # type: ignore[index]
    return found


def held_once(copies: Mapping[int, Mapping[int, Mapping[str, int]]], table_bytes: int) -> bool:
    """Whether each copy is of a whole version, and lies in large pages in memory once."""
    return all(
        0.99 * table_bytes
        < sum(account["Pss"] for account in by_process.values())
        < 1.1 * table_bytes
        and all(a["ShmemPmdMapped"] > 0.9 * table_bytes for a in by_process.values())
        for by_process in copies.values()
    )


def test_versions_and_workers_that_come_later_share_one_copy(tmp_path: Path) -> None:
    first = publish_wide(tmp_path / "r")
    table_bytes = open_model(first).artifact.manifest.table_bytes
    assert table_bytes > 20e6
    options = ("--workers", WORKERS, "--memory", "huge", "--follow", "latest:2")
    served = running_server(
        tmp_path / "r", tmp_path / "stderr", *options, "--poll-seconds", 0.2, forked=False
    )
    with served as server:
        parent = server.process.pid
        of_start = copies_of(server)
        assert len(of_start) == 1 and held_once(of_start, table_bytes)
        [by_process] = of_start.values()
        # Those that serve nothing have released theirs.
        assert by_process.keys() == {parent, *workers_of(server)}

        second = publish_wide(tmp_path / "r")
        until(lambda: _loads(server) == 2, "the second version is loaded")
        until(lambda: len(copies_of(server)) == 2, "there are two copies")
        both = copies_of(server)
        assert held_once(both, table_bytes)
        [later] = both.keys() - of_start.keys()
        assert both[later].keys() == {*workers_of(server)}

        # The copy's maker, or not: each in turn, so that no process is left that was there.
        for killed in workers_of(server):
            os.kill(killed, signal.SIGKILL)
            until(lambda killed=killed: _is_replaced(server, killed), "another one is there")  # type: ignore[misc]
        again = copies_of(server)
        assert again.keys() == both.keys() and held_once(again, table_bytes)
        assert again[later].keys() == {*workers_of(server)}
        for path, version in ((first, "1"), (second, "2")):
            expected = open_model(path).predict(INPUTS)["score"]
            request = infer_request(INPUTS, model="wide")
            request.model_version = version
            with server.stub() as stub:
                scores = scores_of(stub.ModelInfer(request, timeout=30))["score"]
            np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)

        # What is unloaded goes back to the system: by everyone, the parent too.
        publish_wide(tmp_path / "r")
        until(lambda: _loads(server) == 3, "the third version is loaded")
        until(lambda: not of_start.keys() & copies_of(server).keys(), "the first one is gone")
        last = copies_of(server)
        assert len(last) == 2 and later in last and held_once(last, table_bytes)
    log = (tmp_path / "stderr").read_text()
    assert "internal error" not in log and "cannot be shared" not in log


def _loads(server: RunningServer) -> float:
    return counted(server, "sharded_infer_version_loads_total")


def _is_replaced(server: RunningServer, killed: int) -> bool:
    workers = workers_of(server)
    return killed not in workers and len(workers) == WORKERS
