"""What `bench engine` found: medians, and the shares and rates that follow from them."""

from dataclasses import dataclass

from sharded_infer.precision import Precision

STAGES = ("decode", "lookup", "tower", "encode")


@dataclass(frozen=True, slots=True)
class MachineLimit:
    """The least that lookups and a tower can take on this core, seconds a request.

    Attributes:
        layers: inputs and outputs of each of the tower's layers.
        layer_seconds: of each layer's matrix product, in the tower's precision.
        gather_seconds: of copying the request's rows from memory of 2 MiB pages.
        gather_4k_seconds: the same from memory of 4 KiB pages; no part of the limit.
    """

    layers: tuple[tuple[int, int], ...]
    layer_seconds: tuple[float, ...]
    gather_seconds: float
    gather_4k_seconds: float

    @property
    def matrix_seconds(self) -> float:
        """All matrix products together."""
        return sum(self.layer_seconds)

    @property
    def seconds(self) -> float:
        """The limit."""
        return self.matrix_seconds + self.gather_seconds


@dataclass(frozen=True, slots=True)
class EngineRun:
    """Ours with a tower of one precision, seconds a request.

    Attributes:
        stages: by the names in `STAGES`.
        whole_seconds: from the message to the response.
        minor_faults: pages that a request made the system map: 0 where all memory is reused.
        limit: the machine's, in this precision.
    """

    stages: dict[str, float]
    whole_seconds: float
    minor_faults: float
    limit: MachineLimit

    @property
    def computing_seconds(self) -> float:
        """Lookups and tower, which is what the limit and TorchRec's seconds are of."""
        return self.stages["lookup"] + self.stages["tower"]

    @property
    def limit_fraction(self) -> float:
        """The limit's time over that of our lookups and tower: 1 would be the machine's best."""
        return self.limit.seconds / self.computing_seconds

    @property
    def whole_limit_fraction(self) -> float:
        """The limit's time over our whole time, messages and all."""
        return self.limit.seconds / self.whole_seconds


@dataclass(frozen=True, slots=True)
class RankingRun:
    """Requests whose pairs have one user, in the fastest precision; seconds a request.

    Attributes:
        user_features: so many are the same for all pairs of a request.
        user_lookups: a pair's lookups of them.
        expanded_seconds: where the message repeats them for every pair.
        shared_seconds: where it says them once.
    """

    user_features: int
    user_lookups: int
    expanded_seconds: float
    shared_seconds: float

    @property
    def gain(self) -> float:
        """How many times as fast the shared form is."""
        return self.expanded_seconds / self.shared_seconds


@dataclass(frozen=True, slots=True)
class EngineMeasurement:
    """Medians.

    Attributes:
        pairs: samples of a request.
        runs: ours, by the tower's precision.
        ranking: ours with requests of one user each.
        torchrec_seconds: TorchRec's a request, dense parts in fp32; None where it is not installed.
        torchrec_bf16_seconds: the same with dense parts in bf16.
        torchrec_refusal: why TorchRec was not measured; None where it was.
        lookup_backends: the kernel backend of each row format.
        decode_backend: what reads the messages.
        core_share: processor time over time passed while variants took their turns: below 1, other
            processes had the core in between, and the figures are too slow.
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

    @property
    def fastest(self) -> Precision:
        """The precision of the run that takes the least time."""
        return min(self.runs, key=lambda precision: self.runs[precision].whole_seconds)

    def rate(self, seconds: float | None) -> float | None:
        """Pairs a second at so many seconds a request."""
        return None if seconds is None else self.pairs / seconds
