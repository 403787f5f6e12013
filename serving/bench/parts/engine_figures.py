"""Medians of `bench engine`, with shares and rates computed from them."""

from dataclasses import dataclass

from sharded_infer.specs.precision import Precision
from sharded_infer.towers.host_products import HostProducts

STAGES = ("decode", "lookup", "tower", "encode")


@dataclass(frozen=True, slots=True)
class MachineLimit:
    """Lower bound of lookups and a tower on this core, seconds a request.

    Attributes:
        layers: inputs and outputs of each of the tower's layers.
        layer_seconds: of each layer's matrix product, in the precision that runs.
        gather_seconds: copy of the request's rows from memory of 2 MiB pages.
        gather_4k_seconds: the same with 4 KiB pages; not part of the limit.
    """

    layers: tuple[tuple[int, int], ...]
    layer_seconds: tuple[float, ...]
    gather_seconds: float
    gather_4k_seconds: float

    @property
    def matrix_seconds(self) -> float:
        """Sum of all matrix products."""
        return sum(self.layer_seconds)

    @property
    def seconds(self) -> float:
        """Sum of matrix products and gather."""
        return self.matrix_seconds + self.gather_seconds


@dataclass(frozen=True, slots=True)
class EngineRun:
    """Our engine with a tower of one precision, seconds a request from message to response.

    Stages have the names in `STAGES`. `minor_faults` are 0 if all memory is reused.
    """

    products: HostProducts
    stages: dict[str, float]
    whole_seconds: float
    minor_faults: float
    limit: MachineLimit

    @property
    def computing_seconds(self) -> float:
        """Seconds of lookups and tower, the part that the limit and TorchRec's seconds cover."""
        return self.stages["lookup"] + self.stages["tower"]

    @property
    def limit_fraction(self) -> float:
        """Limit over seconds of lookups and tower; 1 is the machine's best."""
        return self.limit.seconds / self.computing_seconds

    @property
    def whole_limit_fraction(self) -> float:
        """Limit over seconds of the whole request, messages included."""
        return self.limit.seconds / self.whole_seconds


@dataclass(frozen=True, slots=True)
class RankingRun:
    """Requests whose pairs share a user, in the fastest precision; seconds a request.

    Lookups are those of a pair in the user's features, which are repeated or sent once.
    """

    user_features: int
    user_lookups: int
    expanded_seconds: float
    shared_seconds: float

    @property
    def gain(self) -> float:
        """Speed of the shared form over that of the expanded form."""
        return self.expanded_seconds / self.shared_seconds


@dataclass(frozen=True, slots=True)
class EngineMeasurement:
    """Medians of all variants, ours by the tower's precision, TorchRec's with dense parts in fp32.

    Attributes:
        lookup_backends: kernel backend by row format.
        decode_backend: the reader of messages.
        core_share: processor time over wall-clock time of the variants. Below 1, other processes
            used the core in between, and the figures are too slow.
        huge_page_share: of our tables.
    """

    pairs: int
    runs: dict[Precision, EngineRun]
    ranking: RankingRun
    torchrec_seconds: float | None
    torchrec_bf16_seconds: float | None
    torchrec_refusal: str | None
    lookup_backends: dict[str, str]
    decode_backend: str
    core_share: float
    huge_page_share: float

    @property
    def fastest(self) -> Precision:
        """Precision of the run with the least time."""
        return min(self.runs, key=lambda precision: self.runs[precision].whole_seconds)

    def rate(self, seconds: float | None) -> float | None:
        """Pairs a second for the given seconds a request."""
        return None if seconds is None else self.pairs / seconds
