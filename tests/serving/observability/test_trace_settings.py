from typing import Any

import pytest

from serving.observability.trace_settings import TraceSampling, TraceSettings, trace_settings
from sharded_infer.errors import InputError

URL = "http://collector:4317"
NAMED = {"OTEL_EXPORTER_OTLP_ENDPOINT": URL}


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"OTEL_TRACES_SAMPLER": "always_on"},
        NAMED | {"OTEL_SDK_DISABLED": "TRUE"},
        NAMED | {"OTEL_TRACES_EXPORTER": "none"},
    ],
)
def test_nothing_is_traced_unless_a_collector_is_named(environment: dict[str, str]) -> None:
    assert trace_settings(None, None, environment) is None


@pytest.mark.parametrize(
    ("endpoint", "ratio", "environment", "expected"),
    [
        (URL, None, {}, TraceSettings(TraceSampling(0.01), URL)),
        (None, 0.5, {}, TraceSettings(TraceSampling(0.5))),
        (None, None, NAMED, TraceSettings(TraceSampling(0.01))),
        (URL, 0.5, {"OTEL_TRACES_SAMPLER": "always_on"}, TraceSettings(TraceSampling(0.5), URL)),
        (URL, None, {"OTEL_SDK_DISABLED": "true"}, TraceSettings(TraceSampling(0.01), URL)),
    ],
)
def test_options_go_before_the_environment(
    endpoint: str | None, ratio: float | None, environment: dict[str, str], expected: Any
) -> None:
    assert trace_settings(endpoint, ratio, environment) == expected


@pytest.mark.parametrize(
    ("sampler", "argument", "expected"),
    [
        ("always_on", "", TraceSampling(1.0, follows_parent=False)),
        ("traceidratio", "0.25", TraceSampling(0.25, follows_parent=False)),
        ("parentbased_always_on", "0.25", TraceSampling(1.0)),
        ("parentbased_traceidratio", "0.25", TraceSampling(0.25)),
        ("", "0.25", TraceSampling(0.25)),
    ],
)
def test_the_variables_name_a_sampler(sampler: str, argument: str, expected: TraceSampling) -> None:
    variables = {"OTEL_TRACES_SAMPLER": sampler, "OTEL_TRACES_SAMPLER_ARG": argument}
    settings = trace_settings(URL, None, variables)
    assert settings is not None and settings.sampling == expected


@pytest.mark.parametrize(
    ("endpoint", "ratio", "environment", "words"),
    [
        ("collector:4317", None, {}, "expected http://HOST:PORT"),
        (URL, 1.5, {}, "--trace-ratio: expected a number from 0 to 1, got 1.5"),
        (URL, None, {"OTEL_TRACES_SAMPLER": "jaeger_remote"}, "OTEL_TRACES_SAMPLER=jaeger_remote"),
        (URL, None, {"OTEL_TRACES_SAMPLER_ARG": "nan"}, "got nan"),
        (URL, None, {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}, "expected grpc"),
    ],
)
def test_what_means_nothing_is_refused(
    endpoint: str, ratio: float | None, environment: dict[str, str], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        trace_settings(endpoint, ratio, environment)


def test_a_missing_extra_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.observability.trace_settings.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'sharded-infer\[tracing\]'"):
        trace_settings(URL, None, {})
