import numpy as np
import pytest

from serving.metrics.server_metrics import ServerMetrics
from serving.metrics.version_info import VersionInfo
from serving.remote.shadow_figures import ShadowFigures, ShadowOutput, shadow_figures
from tests.serving.inference.planes import samples_of


def test_a_page_without_a_shadow_has_no_figures() -> None:
    metrics = ServerMetrics(shadows=True)
    metrics.version("ranker", 1)
    assert shadow_figures(list(samples_of(metrics))) == {}


def test_figures_are_those_of_the_page_by_output() -> None:
    metrics = ServerMetrics(shadows=True)
    counters = metrics.version("ranker", 2)
    counters.describe(VersionInfo(0.1, (1,), ("score", "labels", "unseen")))
    shadow = counters.shadows
    assert shadow is not None
    shadow.shadowing(True)
    assert shadow_figures(list(samples_of(metrics))) == {("ranker", 2): ShadowFigures(0, 0, 0, ())}
    default = np.array([0.2, 0.2, 0.6, 0.6], np.float32)
    pairs = {0: (default, default + np.float32(0.25)), 1: (default, default)}
    shadow.scored(pairs, default_seconds=0.1, seconds=0.1, now=1.0)
    for code in ("INTERNAL", "INVALID_ARGUMENT"):
        shadow.failed(code)
    shadow.dropped("full", 3)
    [figures] = shadow_figures(list(samples_of(metrics))).values()
    score, labels = figures.outputs
    assert figures == ShadowFigures(1, 2, 3, (score, labels))
    assert labels == ShadowOutput("labels", 0.0, 0.0, 0.0)
    # Half of the scores pass the boundary 0.3, and the other half 0.8.
    assert score == ShadowOutput(
        "score", pytest.approx(0.25), pytest.approx(0.25), pytest.approx(0.5)
    )
    assert figures.worst == score
