"""Ids that id maps do not know, as clients and operators of running servers hear of them."""

from collections.abc import Iterator

import numpy as np
import pytest

from tests.support.raw_ids import SPEC, Arrays, RawModel, publish_raw
from tests.support.server_pages import counted
from tests.support.servers import TRANSPORTS, RunningServer, infer_request, running_server

# Of `item` unknown ids leave their bags, of `shop` and `ad` they read rows. Two know "shop".
UNKNOWN = {"item": 2, "shop": 3, "ad": 4}


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> RawModel:
    return publish_raw(tmp_path_factory.mktemp("raw"), topologies=("cpu:1",))


@pytest.fixture(scope="module", params=TRANSPORTS)
def server(
    request: pytest.FixtureRequest, published: RawModel, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("server")
    options = ("--workers", 2, "--transport", request.param)
    with running_server(published.path.parents[1], folder / "log", *options) as running:
        yield running


def asked(published: RawModel) -> Arrays:
    """Two samples of which `UNKNOWN` ids are in no map."""
    known = {name: [*entries] for name, entries in published.maps.items()}
    # What "shop" knows, "ad" does not, unless both have it.
    shops = [raw for raw in known["shop"] if raw not in published.maps["ad"]]
    return {
        "age": np.zeros((2, 1), np.float32),
        "user_id": np.array(known["user"][:2]),
        "clicked": np.array([[known["item"][0], 77, 78], known["item"][1:4]]),
        "bought": np.array([known["item"][4:6]] * 2),
        "shop": np.array([[shops[0], 77], [78, 79]]),
        "ad": np.array(known["ad"][:2]),
    }


def by_table(server: RunningServer, family: str) -> dict[str, float]:
    """A family's count of each table with an id map."""
    name = f"sharded_infer_{family}_total"
    return {t.name: counted(server, name, model="raw", table=t.name) for t in SPEC.mapped_tables}


def test_unknown_ids_are_counted_by_table(server: RunningServer, published: RawModel) -> None:
    before = by_table(server, "ids_unknown"), by_table(server, "ids_mapped")
    message = infer_request(asked(published), model="raw")
    with server.stub() as stub:
        for _ in range(20):
            stub.ModelInfer(message, timeout=60)
    unknown, mapped = by_table(server, "ids_unknown"), by_table(server, "ids_mapped")
    assert {table: unknown[table] - before[0][table] for table in unknown} == {
        "user": 0,
        **{table: 20 * count for table, count in UNKNOWN.items()},
    }
    wanted = {"user": 40, "item": 200, "shop": 80, "ad": 120}
    assert {table: mapped[table] - before[1][table] for table in mapped} == wanted
