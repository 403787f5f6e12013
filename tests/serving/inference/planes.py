"""Data planes over a published model, in this process."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from serving.inference.data_plane import DataPlane
from serving.metrics.server_metrics import ServerMetrics
from serving.scheduler.batching import BatchingMode
from serving.scheduler.scheduler import QueueLimits
from serving.status import Status
from serving.versions.loaded_version import ServingOverrides
from serving.versions.served_versions import ServedVersions
from sharded_infer.repositories.repository import Repository
from tests.support.servers import MODEL, Ranker, good_inputs, infer_request
from tests.support.wire import Wire, wire_of

# Batched queues with this delay keep requests waiting until the test is done.
ENDLESS = 10**9


def predict_bytes(*, model: str = MODEL, **parameters: int) -> bytes:
    request = infer_request(good_inputs(2), model=model)
    for name, value in parameters.items():
        request.parameters[name].int64_param = value
    return bytes(request.SerializeToString())


def samples_of(metrics: ServerMetrics) -> Iterator[Sample]:
    text = generate_latest(metrics.registry).decode()
    return (s for family in text_string_to_metric_families(text) for s in family.samples)


@dataclass
class Plane:
    """A loaded model, its metrics, and calls that Python rewrites."""

    store: ServedVersions
    metrics: ServerMetrics
    plane: DataPlane

    @property
    def wire(self) -> Wire:
        return wire_of(self.plane)

    @property
    def outcomes(self) -> list[bytes | Status]:
        """Of the submitted calls, in the order of their ends."""
        return list(self.wire.answers.values())

    def submit(self, seconds: float | None = None, **parameters: int) -> int | None:
        """The call's number; None if it is refused."""
        return self.send(predict_bytes(**parameters), seconds)

    def send(self, message: bytes, seconds: float | None = None) -> int | None:
        number = self.wire.submit(self.plane, message, time_remaining=seconds)
        return None if number in self.wire.answers else number

    def work_off(self) -> None:
        while self.plane.dispatcher.work():
            pass

    def total(self, name: str, **labels: str) -> float:
        return sum(
            sample.value
            for sample in samples_of(self.metrics)
            if sample.name == f"sharded_infer_{name}" and labels.items() <= sample.labels.items()
        )

    def totals_by(self, label: str, name: str, **labels: str) -> dict[str, float]:
        return {
            sample.labels[label]: sample.value
            for sample in samples_of(self.metrics)
            if sample.name == f"sharded_infer_{name}"
            and labels.items() <= sample.labels.items()
            and sample.value
        }


def add_shadow(store: ServedVersions, metrics: ServerMetrics, ranker: Ranker) -> None:
    """Adds version 2, which is version 1 once more, with the label `canary`."""
    model = ranker.model
    second: Any = SimpleNamespace(name=MODEL, version=2, spec=model.spec, work=model.work)
    store.add(replace(store.get(MODEL), metrics=metrics.version(MODEL, 2), model=second))
    store.offer({MODEL: {"": 1, "1": 1, "canary": 2}})


def plane_of(
    repository: Path,
    model: str = MODEL,
    *,
    mode: BatchingMode = BatchingMode.BATCHED,
    delay_us: int = 0,
    limits: QueueLimits | None = None,
    **fields: Any,
) -> Plane:
    """Load a model; `fields` are those of `DataPlane`."""
    metrics = ServerMetrics(shadows=fields.get("shadows") is not None)
    store = ServedVersions(
        Repository(repository),
        metrics,
        topology=None,
        max_batch=256,
        overrides=ServingOverrides(mode, delay_us),
    )
    store.load(model)
    plane = DataPlane(store, metrics, slots=1, limits=limits or QueueLimits(), **fields)
    return Plane(store, metrics, plane)
