"""One model with every kind of row, on a front and two shard hosts that are processes."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from tritonclient.grpc import service_pb2

from serving.protocol.lookups.version_key import version_key
from serving.protocol.wire_strings import packed_strings
from serving.remote_lookups.host_clients import HostClients
from serving.remote_lookups.hosts_file import HostSettings
from serving.remote_lookups.remote_hosts import RemoteHosts
from serving.remote_lookups.replica_group import MOST_FAILURES
from sharded_infer.artifacts.artifact import open_artifact
from sharded_infer.artifacts.golden import generate_samples
from sharded_infer.artifacts.mapped_id_maps import open_places
from sharded_infer.client import Bags, CallSettings, Client, hash_strings
from sharded_infer.engines.executor import run_batch
from sharded_infer.engines.golden_check import check_golden
from sharded_infer.engines.model import Model, open_model
from sharded_infer.errors import RequestTooLargeError, ShardHostError
from sharded_infer.importing.changes.changed_rows import ChangedRows
from sharded_infer.lookups.shard_hosts import Front
from sharded_infer.planning.plan import Plan, Shard
from sharded_infer.planning.topology import Device, Topology
from sharded_infer.publishing.deltas.compaction import compact
from sharded_infer.publishing.deltas.delta_publication import publish_delta
from sharded_infer.publishing.publication import publish
from sharded_infer.repositories.repository import Repository
from sharded_infer.specs.id_map_spec import IdMapSpec
from sharded_infer.specs.model_spec import ModelSpec, QuantizationSpec, TableSpec, TowerSpec
from sharded_infer.specs.sequence_spec import SequenceSpec
from tests.support.fronts import SECONDS, hosts_file, running_front, running_hosts
from tests.support.raw_cluster import replace_plan
from tests.support.raw_ids import source_of
from tests.support.server_pages import counted, fetch
from tests.support.servers import (
    MODEL,
    Arrays,
    RunningServer,
    infer_request,
    json_inputs,
    run,
    scores_of,
)
from tests.support.shard_host_processes import ShardHostProcess, running_shard_host
from tests.support.waiting import until

HOSTS, LOST = 2, 1
QUICK = ("--poll-seconds", 0.1)
# Above what a request may take: one that waits for a stopped host fails.
LONG, SHORT = f"timeout_ms = {2000 * SECONDS:.0f}", "timeout_ms = 200"
# Beside it: the same without default rows, and one of pooled rows alone.
STRICT, PLAIN = "strict", "plain"
DEFAULTS = "sharded_infer_default_tables"
# Users that training knew, two that come with a delta, and users that nobody knows.
KNOWN, NEW, UNKNOWN = 20, 2, 6
WORDS = [f"user {number}".encode() for number in range(KNOWN + NEW + UNKNOWN)]
HASH_SEED = 5
# Candidates are sent as their rows and any multiple of it.
STEP = 1000
USERS = hash_strings(WORDS, "xxh3_64", HASH_SEED).tolist()
WORD_OF = dict(zip(USERS, WORDS, strict=True))
TABLES = (
    TableSpec(
        "item",
        60,
        8,
        features=("candidate", "clicks"),
        default_row=(0.25,) * 8,
        id_steps={"candidate": (("add", -10 * STEP), ("remainder", STEP))},
    ),
    TableSpec("kind", 6, 4, default_row=(-0.5,) * 4),
    TableSpec("shop", 9, 4),
    TableSpec(
        "user",
        KNOWN,
        4,
        features=("user_id",),
        id_map=IdMapSpec("zero", strings="xxh3_64", seed=HASH_SEED),
        default_row=(1.0,) * 4,
    ),
)
DEFAULT_ROWS = {t.name: t.default_row for t in TABLES if isinstance(t.default_row, tuple)}
SPEC = ModelSpec(
    MODEL,
    TABLES,
    tower=TowerSpec(user_inputs=("seen",)),
    quantization=QuantizationSpec("fp32"),
    sequences={
        "seen": SequenceSpec(20, ("clicks", "kind"), dense={"age": 1}, ids=("clicks",)),
        "shops": SequenceSpec(4, features=("shop",), keep="first", pad="left", ids=("shop",)),
    },
)
# By rows, by columns, and whole on either host; the table without a default row stays.
SHARDS = (
    Shard("item", 0, 0, 30, 0, 8),
    Shard("item", LOST, 30, 60, 0, 8),
    Shard("kind", 0, 0, 6, 0, 2),
    Shard("kind", LOST, 0, 6, 2, 4),
    Shard("shop", 0, 0, 9, 0, 4),
    Shard("user", LOST, 0, KNOWN, 0, 4),
)


class Tower(nn.Module):
    """Sums of small numbers, which are exact in any order; some ids hide their rows."""

    def forward(
        self,
        seen: Tensor,
        seen_lengths: Tensor,
        age: Tensor,
        clicks_ids: Tensor,
        shops: Tensor,
        shops_lengths: Tensor,
        shop_ids: Tensor,
        embeddings: Tensor,
    ) -> Tensor:
        age = age * (clicks_ids % 3 != 0).unsqueeze(2)
        rows = (seen * age).sum((1, 2)) + (shops * (shop_ids > 2).unsqueeze(2)).sum((1, 2))
        return rows + embeddings.sum(1) + (seen_lengths + shops_lengths).to(torch.float32)


class Sum(nn.Module):
    def forward(self, embeddings: Tensor) -> Tensor:
        return embeddings.sum(1)


def drawn(count: int, dim: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-8, 9, (count, dim), generator=generator) / 2


def bags(inputs: Arrays, name: str) -> list[list[Any]]:
    ends = np.cumsum(inputs[f"{name}.lengths"])
    return [part.tolist() for part in np.split(inputs[name], ends[:-1])]


class Trained:
    """The trained rows and users, and the scores of a loop over them."""

    def __init__(self) -> None:
        self.rows = {table.name: drawn(table.rows, table.dim, table.rows) for table in TABLES}
        self.users = {raw: row for row, raw in enumerate(USERS[:KNOWN])}
        self.lost_items: set[int] = set()
        self._seeds = count()

    def change(self, name: str, ids: list[int], removed: tuple[int, ...] = ()) -> ChangedRows:
        """Trains rows anew; ids that are not there are added."""
        values = drawn(len(ids), self.rows[name].shape[1], sum(ids) % 1000)
        for number, row in zip(ids, values, strict=True):
            rows, place = self.rows[name], number
            if name == "user":
                place = self.users.setdefault(number, len(rows))
            self.rows[name] = torch.cat([rows[:place], row[None], rows[place + 1 :]])
        for raw in removed:
            del self.users[raw]
        return ChangedRows(np.array(ids), values, removed=np.array(removed, np.int64))

    def scores(self, inputs: Arrays, *, is_lost: bool = False) -> list[float]:
        """With default rows where the host is lost."""

        def total(table: str, number: int) -> float:
            gone = table == "kind" or (table == "item" and number in self.lost_items)
            default = DEFAULT_ROWS.get(table)
            row = default if is_lost and gone and default else self.rows[table][number].tolist()
            return float(sum(row))

        clicks, kinds, shops = (bags(inputs, name) for name in ("clicks", "kind", "shop"))
        ages, users = (bags(inputs, name) for name in ("age", "user_id"))
        scales = inputs.get("user_id.weights", np.ones(len(inputs["user_id"]), np.float32))
        weights = bags({"scale": scales, "scale.lengths": inputs["user_id.lengths"]}, "scale")
        found = []
        for sample, (candidate,) in enumerate(inputs["candidate"].tolist()):
            score = total("item", candidate % STEP)
            kept = list(zip(clicks[sample], kinds[sample], ages[sample], strict=True))[-20:]
            for click, kind, age in kept:
                score += (total("item", click) + total("kind", kind)) * age * (click % 3 != 0)
            first = shops[sample][:4]
            score += sum(total("shop", shop) for shop in first if shop > 2)
            for raw, weight in zip(users[sample], weights[sample], strict=True):
                if is_lost:
                    # It is not known which of them the host would know: all count.
                    score += sum(DEFAULT_ROWS["user"])
                elif raw in self.users:
                    score += weight * total("user", self.users[raw])
            found.append(score + len(kept) + len(first))
        return found

    def inputs(self, batch: int, *, weighted: bool = False) -> Arrays:
        """Histories of 0 to 24 ids, some of them longer than the sequence; unknown users too.

        No two are equal: the front keeps states of users.
        """
        generator = np.random.default_rng(next(self._seeds))
        items = len(self.rows["item"])
        candidates = generator.integers(0, items, batch) + STEP * generator.integers(-3, 4, batch)
        arrays: Arrays = {"candidate": candidates[:, None]}
        lengths = generator.integers(0, 25, batch)
        for name, rows in (("clicks", items), ("kind", 6)):
            arrays |= {
                name: generator.integers(0, rows, int(lengths.sum())),
                f"{name}.lengths": lengths,
            }
        arrays["age"] = generator.integers(1, 5, int(lengths.sum())).astype(np.float32) / 2
        arrays["age.lengths"] = lengths
        for name, ids in (("shop", np.arange(9)), ("user_id", np.array(USERS))):
            lengths = generator.integers(0, 7, batch)
            arrays |= {name: generator.choice(ids, lengths.sum()), f"{name}.lengths": lengths}
        if weighted:
            weights = generator.integers(-4, 5, len(arrays["user_id"]))
            arrays["user_id.weights"] = weights.astype(np.float32) / 2
        return arrays


@dataclass(frozen=True)
class Cluster:
    """A front, and the hosts of its rows; the second of them is lost in some tests."""

    folder: Path
    trained: Trained
    hosts: dict[int, ShardHostProcess]
    front: RunningServer
    stack: ExitStack

    @property
    def repository(self) -> Path:
        return self.folder / "repository"

    def newest(self) -> Path:
        model = self.repository / MODEL
        return model / str(Repository(self.repository).versions(MODEL)[-1])

    def restart_lost(self) -> None:
        lost = self.hosts[LOST]
        port = lost.address.rpartition(":")[2]
        log = lost.log.with_suffix(".again")
        self.hosts[LOST] = self.stack.enter_context(
            running_shard_host(self.repository, LOST, log, *QUICK, "--port", port, exit_code=None)
        )

    def answer(self, inputs: Arrays, **more: Any) -> Any:
        with self.front.stub() as stub:
            return stub.ModelInfer(message(inputs, **more), timeout=SECONDS)

    def check(self, inputs: Arrays, *, is_lost: bool = False, **more: Any) -> None:
        found = scores_of(self.answer(inputs, **more))["score"]
        np.testing.assert_array_equal(found, self.trained.scores(inputs, is_lost=is_lost))

    def default_tables(self, seconds: float = SECONDS) -> str | None:
        """What an answer says of default rows; None: there is none in time."""
        with self.front.stub() as stub:
            try:
                return said(stub.ModelInfer(message(self.trained.inputs(30)), timeout=seconds))
            except grpc.RpcError as error:
                if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                    raise
                return None

    def until_whole(self) -> None:
        """Waits until each thread of the front looks everything up."""
        until(lambda: {self.default_tables() for _ in range(20)} == {""}, "no row is a default")

    @contextmanager
    def stopped_host(self) -> Iterator[None]:
        process = self.hosts[LOST].process
        os.kill(process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(process.pid, signal.SIGCONT)

    def wait_at_most(self, line: str) -> None:
        """Changes how long the front waits for a lookup."""
        read = self.front.log.read_text().count("read anew")
        hosts_file(self.folder, self.hosts, line)
        until(lambda: self.front.log.read_text().count("read anew") > read, line)


def message(inputs: Arrays, model: str = MODEL, *, strings: bool = False) -> Any:
    """A request whose users are numbers, or strings."""
    request = infer_request(inputs, model=model)
    if strings:
        place = [tensor.name for tensor in request.inputs].index("user_id")
        request.inputs[place].datatype = "BYTES"
        words = [WORD_OF[raw] for raw in inputs["user_id"].tolist()]
        request.raw_input_contents[place] = packed_strings(words)
    return request


def said(response: Any) -> str:
    return str(response.parameters[DEFAULTS].string_param) if response.parameters else ""


def publish_planned(spec: ModelSpec, trained: Trained, repository: Path) -> Path:
    """A version whose rows of `item` lie by their use; its folder."""
    path = publish(
        spec,
        trained.rows,
        Tower(),
        repository,
        topologies=("cpu:2",),
        id_maps={"user": source_of(trained.users)},
        order_rows="frequency",
        frequencies={"item": 7 * np.arange(60) % 61},
    ).path
    place(path, SHARDS)
    return path


def publish_plain(repository: Path) -> None:
    table = TableSpec("kind", 6, 4, default_row=(-0.5,) * 4)
    rows = {"kind": drawn(6, 4, seed=1)}
    path = publish(ModelSpec(PLAIN, (table,)), rows, Sum(), repository, topologies=("cpu:2",)).path
    place(path, (Shard("kind", LOST, 0, 6, 0, 4),))


def place(version: Path, shards: tuple[Shard, ...]) -> None:
    [name] = open_artifact(version).manifest.plans
    devices = tuple(Device(host=host) for host in range(HOSTS))
    replace_plan(version, Plan(Topology(name, devices), shards))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder, trained = tmp_path_factory.mktemp("all"), Trained()
    strict = tuple(replace(table, default_row=None) for table in TABLES)
    publish_planned(replace(SPEC, name=STRICT, tables=strict), trained, folder / "repository")
    publish_plain(folder / "repository")
    version = publish_planned(SPEC, trained, folder / "repository")
    manifest = open_artifact(version).manifest
    assert manifest.row_places is not None
    places = open_places(version / manifest.row_places["item"], manifest.stored_tables()["item"])
    rows = places.places.rows(np.arange(60)).tolist()
    # New items come last, and lie on that host too.
    trained.lost_items = {item for item, row in enumerate(rows) if row >= 30} | {60, 61}
    assert trained.lost_items - {60, 61} != set(range(30, 60))
    with ExitStack() as stack:
        home = (folder / "repository", folder)
        lost = stack.enter_context(running_hosts(*home, (LOST,), *QUICK, exit_code=None))
        hosts = {**stack.enter_context(running_hosts(*home, (0,), *QUICK)), **lost}
        options = ("--memory", "map", "--user-cache-mib", 16, *QUICK)
        front = stack.enter_context(running_front(*home, hosts, *options, more=LONG))
        yield Cluster(folder, trained, hosts, front, stack)


def test_answers_have_the_bits_of_one_process(cluster: Cluster) -> None:
    whole = open_model(cluster.newest())
    for batch in (1, 1, 3, 40):
        for weighted in (False, True):
            inputs = cluster.trained.inputs(batch, weighted=weighted)
            # The second time, users' states are there.
            cluster.check(inputs)
            cluster.check(inputs, strings=True)
            scores = whole.predict(inputs)["score"]
            np.testing.assert_array_equal(scores, cluster.trained.scores(inputs))


def test_an_answer_says_how_many_users_the_hosts_did_not_know(cluster: Cluster) -> None:
    inputs = cluster.trained.inputs(40)
    unknown = sum(raw not in cluster.trained.users for raw in inputs["user_id"].tolist())
    request = message(inputs)
    request.parameters["unknown_ids"].bool_param = True
    before = counted(cluster.front, "sharded_infer_ids_unknown_total", model=MODEL)
    with cluster.front.stub() as stub:
        told = stub.ModelInfer(request, timeout=SECONDS).parameters
    assert told["unknown_ids.user"].int64_param == unknown > 0
    now = counted(cluster.front, "sharded_infer_ids_unknown_total", model=MODEL)
    assert now == before + unknown


def test_metadata_and_configuration_describe_sequences_and_raw_ids(cluster: Cluster) -> None:
    with cluster.front.stub() as stub:
        metadata = stub.ModelMetadata(service_pb2.ModelMetadataRequest(name=MODEL), timeout=SECONDS)
        asked = service_pb2.ModelConfigRequest(name=MODEL)
        parameters = stub.ModelConfig(asked, timeout=SECONDS).config.parameters
    inputs = {one.name: (one.datatype, list(one.shape)) for one in metadata.inputs}
    for name in ("clicks", "kind", "shop", "user_id"):
        assert inputs[name] == ("INT64", [-1, -1])
    assert inputs["age"] == ("FP32", [-1, -1])
    said = {name: parameter.string_value for name, parameter in parameters.items()}
    for name in ("clicks", "kind", "age"):
        assert said[f"sequence.{name}"] == "seen"
    asked_for = ("max_length.seen", "keep.seen", "keep.shops")
    assert [said[name] for name in asked_for] == ["20", "last", "first"]
    assert (said["raw_ids.user_id"], said["string_hash.user_id"]) == ("INT64, BYTES", "xxh3_64")


def front_of(version: Path, *addresses: str, answer_bytes: int) -> Model:
    settings = HostSettings({number: (at,) for number, at in enumerate(addresses)}, SECONDS)
    clients = HostClients(settings, answer_bytes=answer_bytes)
    remote = RemoteHosts(version_key(open_artifact(version).manifest), clients)
    return open_model(version, front=Front(remote))


def test_an_answer_that_is_too_large_fails_its_request_and_no_other(cluster: Cluster) -> None:
    addresses = (cluster.hosts[number].address for number in range(HOSTS))
    front = front_of(cluster.newest(), *addresses, answer_bytes=1_500)
    small, large = (generate_samples(front.spec, samples) for samples in (1, 200))
    # As many failures would eject the replicas.
    for _ in range(2 * MOST_FAILURES):
        with pytest.raises(RequestTooLargeError, match="at most 1500 are allowed"):
            run_batch(front, large, may_default=True)
    ran = run_batch(front, small, may_default=True)
    assert not ran.default_tables


def test_golden_requests_never_pass_with_default_rows(cluster: Cluster) -> None:
    addresses = cluster.hosts[0].address, "127.0.0.1:1"
    front = front_of(cluster.newest(), *addresses, answer_bytes=2**20)
    for _ in range(10):
        with pytest.raises(ShardHostError, match=r"shard host \d at "):
            check_golden(front)


def test_deltas_and_what_is_made_whole_of_them_have_the_bits_of_their_rows(
    cluster: Cluster,
) -> None:
    trained, repository = cluster.trained, cluster.repository

    def is_served(version: int) -> None:
        until(
            lambda: cluster.answer(inputs).model_version == str(version),
            f"version {version} is served",
        )
        # States of users of the version before must not be used.
        for _ in range(2):
            cluster.check(inputs, strings=True)

    inputs = trained.inputs(40)
    cluster.check(inputs)
    before, base = trained.scores(inputs), cluster.newest()
    first = {
        "item": trained.change("item", [3, 20, 31, 59, 60]),
        "user": trained.change("user", [USERS[0], USERS[KNOWN]], removed=(USERS[5], USERS[6])),
    }
    is_served(publish_delta(MODEL, first, repository).version)
    assert trained.scores(inputs) != before
    second = {
        "item": trained.change("item", [3, 61]),
        "kind": trained.change("kind", [1, 4]),
        "user": trained.change("user", [USERS[KNOWN], USERS[KNOWN + 1], USERS[5]]),
    }
    is_served(publish_delta(MODEL, second, repository).version)
    whole = compact(repository, MODEL)
    is_served(whole.version)
    places = [open_artifact(path).manifest.row_places for path in (base, whole.path)]
    assert places[0] == places[1]


def test_a_stopped_host_is_waited_for_no_longer_than_a_lookup_and_then_not_at_all(
    cluster: Cluster,
) -> None:
    trained = cluster.trained
    cluster.wait_at_most(SHORT)
    # A busy machine may take longer than a lookup may.
    cluster.until_whole()
    with cluster.stopped_host():
        cluster.check(trained.inputs(30), is_lost=True)
    cluster.until_whole()
    cluster.wait_at_most(LONG)
    with cluster.stopped_host():
        # Checks find it silent. Until then each request waits until its own deadline.
        until(lambda: cluster.default_tables(3.0) == "item,kind,user", "requests do not wait")
        cluster.check(trained.inputs(30), is_lost=True)
    cluster.until_whole()


def over_rest(cluster: Cluster, inputs: Arrays) -> tuple[list[float], str]:
    body = json.dumps({"inputs": json_inputs(inputs)}).encode()
    url = f"{cluster.front.http_url}/v2/models/{MODEL}/infer"
    read = json.loads(fetch(url, body)[1])
    return read["outputs"][0]["data"], read.get("parameters", {}).get(DEFAULTS, "")


def over_predict(cluster: Cluster, inputs: Arrays) -> tuple[list[float], str]:
    jagged = ("clicks", "kind", "age", "shop", "user_id")
    candidates: dict[str, Any] = {n: Bags(inputs[n], inputs[f"{n}.lengths"]) for n in jagged}
    candidates["candidate"] = inputs["candidate"]
    with Client(cluster.front.grpc_url, CallSettings(timeout_seconds=SECONDS)) as client:
        found = client.predict(MODEL, candidates=candidates)
    return found.scores["score"].tolist(), ",".join(found.default_tables)


def over_stream(cluster: Cluster, inputs: Arrays) -> tuple[list[float], str]:
    with cluster.front.stub() as stub:
        [answer] = stub.ModelStreamInfer(iter([message(inputs)]), timeout=SECONDS)
    response = answer.infer_response
    tables = str(response.parameters[DEFAULTS].string_param)
    return scores_of(response)["score"].tolist(), tables


def test_the_command_predicts_with_sequences_and_their_numbers(cluster: Cluster) -> None:
    inputs = cluster.trained.inputs(1)
    sample = {name: array.ravel().tolist() for name, array in inputs.items() if "." not in name}
    done = run(
        *("predict", "-", "--address", cluster.front.grpc_url, "--model", MODEL),
        stdin=json.dumps(sample),
    )
    assert done.returncode == 0, done.stderr
    assert np.float32(done.stdout.split()[1]) == np.float32(cluster.trained.scores(inputs)[0])


def test_a_killed_host_costs_tables_with_default_rows_no_answer_and_each_answer_says_so(
    cluster: Cluster,
) -> None:
    front, lost, trained = cluster.front, cluster.hosts[LOST], cluster.trained
    log = front.log.read_text
    cluster.until_whole()
    before = counted(front, "sharded_infer_shard_default_rows_total", host=str(LOST))
    lost.process.kill()
    lost.process.wait()
    inputs = trained.inputs(30)
    # The second time too: such states of users are not kept.
    for _ in range(2):
        cluster.check(inputs, is_lost=True)
    expected = trained.scores(inputs, is_lost=True)
    for ask in (over_rest, over_predict, over_stream):
        assert ask(cluster, inputs) == (expected, "item,kind,user")
    words = ("predict", "-", "--address", front.grpc_url, "--model", PLAIN)
    done = run(*words, stdin=json.dumps({"kind": 3}))
    assert done.returncode == 0, done.stderr
    assert "warning: default rows of tables kind" in done.stderr
    # Deltas add items to the other model.
    few = {name: inputs[name] % TABLES[0].rows for name in ("candidate", "clicks")}
    with pytest.raises(grpc.RpcError) as refused:
        cluster.answer({**inputs, **few}, model=STRICT)
    assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
    assert f"shard host {LOST} at {lost.address}" in refused.value.details()
    until(
        lambda: (
            counted(front, "sharded_infer_shard_default_rows_total", host=str(LOST)) > before + 100
        ),
        "rows are counted",
    )
    assert not counted(front, "sharded_infer_shard_default_rows_total", host="0")
    line = f"shard host {LOST} cannot look its rows up: requests get default rows"
    until(lambda: line in log(), "it is logged")
    cluster.restart_lost()
    cluster.until_whole()
    for ask in (over_rest, over_predict, over_stream):
        assert ask(cluster, inputs) == (trained.scores(inputs), "")
