"""Call settings of a client: security, deadline, retries, hedging."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc

from sharded_infer.v1 import predictor_pb2

_SERVICE = "sharded_infer.v1.Predictor"
PREDICT_METHOD, PREPARE_METHOD = f"/{_SERVICE}/Predict", f"/{_SERVICE}/Prepare"
_LARGEST_MESSAGE = 2**31 - 1
# gRPC's own bounds (proposal A6).
_MOST_ATTEMPTS = 5
_SHORTEST_BACKOFF_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Retries of calls, only if the server returns UNAVAILABLE or cannot be reached.

    gRPC does it (proposal A6): exponential back-off with jitter, or the server's own delay
    (`grpc-retry-pushback-ms`), within the call's deadline. A budget protects an overloaded server:
    every failed attempt takes a token, every answered call returns `tokens_per_success`, and below
    half of `tokens` nothing is retried.

    Attributes:
        attempts: of a call in all, 1 to 5; 1 means no retries.
        first_backoff_seconds: before the second attempt, with 20% jitter; at least 0.01, since gRPC
            never returns from waits that it rounds to 0.
        longest_backoff_seconds: before any attempt.
        tokens: the full budget, up to 1,000.
    """

    attempts: int = 3
    first_backoff_seconds: float = 0.02
    longest_backoff_seconds: float = 1.0
    tokens: int = 10
    tokens_per_success: float = 0.1

    def service_config(self) -> str:
        """The policy as gRPC's service config, JSON; ValueError for a value out of range."""
        if not 1 <= self.attempts <= _MOST_ATTEMPTS:
            raise ValueError(f"attempts: expected 1 to {_MOST_ATTEMPTS}, got {self.attempts}")
        if self.first_backoff_seconds < _SHORTEST_BACKOFF_SECONDS:
            raise ValueError(
                f"first_backoff_seconds: expected {_SHORTEST_BACKOFF_SECONDS} or more, got "
                f"{self.first_backoff_seconds}"
            )
        if self.attempts == 1:
            return json.dumps({})
        policy = {
            "maxAttempts": self.attempts,
            "initialBackoff": f"{self.first_backoff_seconds}s",
            "maxBackoff": f"{self.longest_backoff_seconds}s",
            "backoffMultiplier": 2,
            "retryableStatusCodes": ["UNAVAILABLE"],
        }
        return json.dumps(
            {
                "methodConfig": [{"name": [{"service": _SERVICE}], "retryPolicy": policy}],
                "retryThrottling": {
                    "maxTokens": self.tokens,
                    "tokenRatio": self.tokens_per_success,
                },
            }
        )


@dataclass(frozen=True, slots=True)
class CallSettings:
    """A client's call settings.

    Attributes:
        timeout_seconds: a call's default deadline.
        hedge_after_seconds: delay before a second copy of an unanswered call; the first answer
            counts. It costs a server up to twice the work: set it above the 95th percentile. None:
            never.
        root_certificates: PEM of the authorities that sign the server's certificate, for TLS. An
            empty value means the system's. None: no TLS.
        certificate: the client's own, PEM, for mutual TLS, with `private_key`, PEM.
        token: sent as `authorization: Bearer …`.
        options: further gRPC channel arguments.
    """

    timeout_seconds: float = 1.0
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    hedge_after_seconds: float | None = None
    root_certificates: bytes | None = None
    certificate: bytes | None = None
    private_key: bytes | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    options: tuple[tuple[str, str | int], ...] = ()

    @property
    def metadata(self) -> tuple[tuple[str, str], ...]:
        """Sent with every call."""
        return () if self.token is None else (("authorization", f"Bearer {self.token}"),)

    def channel_options(self) -> list[tuple[str, str | int]]:
        """The channel arguments for gRPC."""
        return [
            ("grpc.max_send_message_length", _LARGEST_MESSAGE),
            ("grpc.max_receive_message_length", _LARGEST_MESSAGE),
            ("grpc.enable_retries", int(self.retry.attempts > 1)),
            ("grpc.service_config", self.retry.service_config()),
            *self.options,
        ]

    def channels(self, kind: Any, targets: Sequence[str]) -> list[Any]:
        """A channel to each target; `kind` is `grpc` or `grpc.aio`."""
        options, credentials = self.channel_options(), self.credentials()
        return [
            kind.insecure_channel(target, options)
            if credentials is None
            else kind.secure_channel(target, credentials, options)
            for target in targets
        ]

    def credentials(self) -> grpc.ChannelCredentials | None:
        """For TLS; None without it."""
        if self.root_certificates is None:
            return None
        return grpc.ssl_channel_credentials(
            self.root_certificates or None, self.private_key, self.certificate
        )


def predictor_methods(channels: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Predict and Prepare of each channel; both take serialized requests."""
    predict, prepare = (
        [
            channel.unary_unary(
                method, request_serializer=None, response_deserializer=response.FromString
            )
            for channel in channels
        ]
        for method, response in (
            (PREDICT_METHOD, predictor_pb2.PredictResponse),
            (PREPARE_METHOD, predictor_pb2.PrepareResponse),
        )
    )
    return predict, prepare
