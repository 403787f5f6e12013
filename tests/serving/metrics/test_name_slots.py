import os

import pytest

from serving.errors import LimitError
from serving.metrics.name_slots import NameSlots
from serving.metrics.server_metrics import ServerMetrics
from sharded_infer.errors import InputError, InternalError
from tests.support.answered_requests import count_answered


def test_a_name_that_is_taken_in_one_process_is_found_in_another() -> None:
    names = NameSlots(2)
    child = os.fork()
    if child == 0:
        names.take("größer")
        os._exit(0)
    os.waitpid(child, 0)
    assert names.find("größer") == 0 and names.name(0) == "größer"
    names.take("second")
    assert names.find("second") == 1 and names.find("third") is None
    with pytest.raises(LimitError, match="counters for 2 models"):
        names.take("third")


def test_a_name_that_does_not_fit_is_refused() -> None:
    for name in ("", "x" * 256):
        with pytest.raises(InputError, match="1 to 255 bytes"):
            NameSlots(1).take(name)


def test_a_model_that_came_later_is_on_the_page_under_its_name() -> None:
    metrics = ServerMetrics(1, most_versions=4)
    metrics.spare(2, slots=2, labels=("stable",))
    assert _models(metrics) == set()
    with pytest.raises(InternalError, match="no room for model 'late'"):
        metrics.releases("late")
    for _ in range(2):
        metrics.adopt("late")
    metrics.releases("late").assign(3, frozenset())
    count_answered(metrics.version("late", 3), [(5, 1.0, 1.0, 1.0, 1.0, 1.0, 5.0, 0)])
    assert _models(metrics) == {"late"}
    assert metrics.registry.get_sample_value(
        "sharded_infer_samples_total", {"model": "late", "version": "3"}
    ) == 5  # fmt: skip
    metrics.adopt("later")
    with pytest.raises(LimitError):
        metrics.adopt("latest")


def _models(metrics: ServerMetrics) -> set[str]:
    return {
        sample.labels["model"]
        for family in metrics.registry.collect()
        for sample in family.samples
        if sample.labels.get("model") not in {None, "unknown"}
    }
