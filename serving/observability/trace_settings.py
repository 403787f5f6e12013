"""Settings of tracing, from options and OpenTelemetry's variables."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec

from sharded_infer.errors import InputError

DEFAULT_TRACE_RATIO = 0.01
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
# Samplers by name: their ratio unless it is the argument, and whether they follow the parent.
_SAMPLERS: dict[str, tuple[float | None, bool]] = {
    "always_on": (1.0, False),
    "always_off": (0.0, False),
    "traceidratio": (None, False),
    "parentbased_always_on": (1.0, True),
    "parentbased_always_off": (0.0, True),
    "parentbased_traceidratio": (None, True),
}


@dataclass(frozen=True, slots=True)
class TraceSampling:
    """Share of traced requests, from 0 to 1, of those whose client does not decide for them."""

    ratio: float
    follows_parent: bool = True


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """Settings of a server's tracing; the OTLP/gRPC `endpoint` None is the environment's."""

    sampling: TraceSampling
    endpoint: str | None = None


def trace_settings(
    endpoint: str | None, ratio: float | None, environment: Mapping[str, str]
) -> TraceSettings | None:
    """Settings from options, and from the environment for missing ones; None without tracing.

    Neither a collector nor a ratio (of the requests without a client's trace) means no tracing.
    Raises InputError for an invalid value, or without the extra `tracing`.
    """
    named = any(environment.get(name) for name in _ENDPOINTS)
    switched_off = (
        environment.get("OTEL_SDK_DISABLED", "").lower() == "true"
        or environment.get("OTEL_TRACES_EXPORTER") == "none"
    )
    if endpoint is None and ratio is None and (switched_off or not named):
        return None
    if endpoint is not None and not endpoint.startswith(("http://", "https://")):
        raise InputError(f"trace endpoint {endpoint!r}: expected http://HOST:PORT or https://")
    for name in _PROTOCOLS:
        if environment.get(name, "grpc") != "grpc":
            raise InputError(f"{name}={environment[name]}: expected grpc")
    sampling = _sampling(ratio, environment)
    if not _is_installed():
        raise InputError("tracing is not installed: pip install 'sharded-infer[tracing]'")
    return TraceSettings(sampling, endpoint)


def _is_installed() -> bool:
    try:
        return find_spec("opentelemetry.exporter.otlp.proto.grpc") is not None
    except ModuleNotFoundError:
        return False


def _sampling(ratio: float | None, environment: Mapping[str, str]) -> TraceSampling:
    if ratio is not None:
        return TraceSampling(_share("--trace-ratio", str(ratio)))
    name = environment.get("OTEL_TRACES_SAMPLER") or "parentbased_traceidratio"
    if name not in _SAMPLERS:
        raise InputError(
            f"OTEL_TRACES_SAMPLER={name}: expected one of {', '.join(sorted(_SAMPLERS))}"
        )
    fixed, follows_parent = _SAMPLERS[name]
    argument = environment.get("OTEL_TRACES_SAMPLER_ARG") or str(DEFAULT_TRACE_RATIO)
    share = _share("OTEL_TRACES_SAMPLER_ARG", argument) if fixed is None else fixed
    return TraceSampling(share, follows_parent)


def _share(name: str, text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = math.nan
    if not 0.0 <= share <= 1.0:
        raise InputError(f"{name}: expected a number from 0 to 1, got {text}")
    return share
