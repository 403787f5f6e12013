"""How a client calls: security, deadline, retries, hedging."""

import json
from dataclasses import dataclass, field

import grpc

PREDICT_METHOD = "/sharded_infer.v1.Predictor/Predict"
_SERVICE = "sharded_infer.v1.Predictor"
_LARGEST_MESSAGE = 2**31 - 1
# gRPC's own bounds (proposal A6).
_MOST_ATTEMPTS = 5
_SHORTEST_BACKOFF_SECONDS = 0.01


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """When a call is made again: only if the server says UNAVAILABLE, or cannot be reached.

    gRPC does it (proposal A6): exponential back-off with jitter, sooner or later where the server
    says when (`grpc-retry-pushback-ms`), within the call's deadline. A budget stops retries while
    more than a few calls fail, so that they do not hold an overloaded server down: every failed
    attempt costs a token, every answered call gives `tokens_per_success` back, and below half of
    `tokens` nothing is tried again.

    Attributes:
        attempts: of a call in all, 1 to 5; 1: no retries.
        first_backoff_seconds: before the second attempt, give or take a fifth; 0.01 or more, as
            gRPC never comes back from waits that it rounds to nothing.
        longest_backoff_seconds: before any.
        tokens: the budget when it is full, up to 1,000.
        tokens_per_success: what an answered call gives back.
    """

    attempts: int = 3
    first_backoff_seconds: float = 0.02
    longest_backoff_seconds: float = 1.0
    tokens: int = 10
    tokens_per_success: float = 0.1

    def service_config(self) -> str:
        """As gRPC wants it.

        Raises:
            ValueError: a value is outside its bounds.
        """
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
    """How a client calls.

    Attributes:
        timeout_seconds: a call's deadline, unless it says another.
        retry: when a call is made again.
        hedge_after_seconds: after so long without an answer the call is made a second time, and
            the first answer counts; None: never. It costs a server up to twice the work: set it
            above the server's 95th percentile.
        root_certificates: PEM of the authorities that sign the server's certificate, for TLS; an
            empty value means the system's; None: no TLS.
        certificate: the client's own, PEM, for mutual TLS.
        private_key: its key, PEM.
        token: sent as `authorization: Bearer …`.
        options: more of gRPC's channel arguments.
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
        """What a channel of gRPC's is made with."""
        return [
            ("grpc.max_send_message_length", _LARGEST_MESSAGE),
            ("grpc.max_receive_message_length", _LARGEST_MESSAGE),
            ("grpc.enable_retries", int(self.retry.attempts > 1)),
            ("grpc.service_config", self.retry.service_config()),
            *self.options,
        ]

    def credentials(self) -> grpc.ChannelCredentials | None:
        """For TLS; None: without."""
        if self.root_certificates is None:
            return None
        return grpc.ssl_channel_credentials(
            self.root_certificates or None, self.private_key, self.certificate
        )
