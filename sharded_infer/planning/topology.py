"""Topologies: the devices that hold a model's tables, and their speeds."""

from collections.abc import Sequence
from dataclasses import replace

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from sharded_infer.planning.device_models import DEVICE_MODELS, DeviceModel

_STRICT = ConfigDict(extra="forbid")
# Between hosts, bytes a second: 100 Gbit/s Ethernet.
NETWORK_BANDWIDTH = 12.5e9


@dataclass(frozen=True, slots=True, config=_STRICT)
class Device:
    """One rank of a topology; bandwidths are bytes a second in one direction.

    Attributes:
        kind: `cpu`, `cuda`, or `host`: pinned memory that a GPU beside it reads.
        memory_bytes: bytes of tables that it may hold; None is no limit.
        host_bandwidth: ids from the host to the device.
        peer_bandwidth: pooled vectors to the tower on the same host; None if they are written
            directly into the tower's input.
        launch_seconds: fixed cost of one fused call.
        granule_bytes: moved by every access at least.
        cache_bytes: of the last cache before device memory.
    """

    kind: str = "cpu"
    host: int = 0
    memory_bytes: int | None = None
    memory_bandwidth: float = Field(default=DEVICE_MODELS["cpu"].memory_bandwidth, gt=0)
    host_bandwidth: float = Field(default=DEVICE_MODELS["cpu"].host_bandwidth, gt=0)
    peer_bandwidth: float | None = Field(default=None, gt=0)
    launch_seconds: float = Field(default=DEVICE_MODELS["cpu"].launch_seconds, ge=0)
    granule_bytes: int = Field(default=DEVICE_MODELS["cpu"].granule_bytes, ge=1)
    cache_bytes: int = Field(default=DEVICE_MODELS["cpu"].cache_bytes, ge=0)
    cache_bandwidth: float = Field(default=DEVICE_MODELS["cpu"].cache_bandwidth, gt=0)


@dataclass(frozen=True, slots=True, config=_STRICT)
class FrontCosts:
    """The process with the tower, and what it costs it to ask other hosts for their sums.

    The defaults are near what `calibrate` measured over loopback (docs/planner-search.md).

    Attributes:
        host: whose ranks are its own; None: it holds no rows.
        call_seconds: of its processor, for each host that it asks.
        round_trip_seconds: until a host that looks nothing up has answered.
        send_bandwidth: ids to all hosts together, bytes a second.
        receive_bandwidth: sums from all hosts together, bytes a second.
    """

    host: int | None = Field(default=None, ge=0)
    call_seconds: float = Field(default=75e-6, ge=0)
    round_trip_seconds: float = Field(default=100e-6, ge=0)
    send_bandwidth: float = Field(default=2e9, gt=0)
    receive_bandwidth: float = Field(default=2e9, gt=0)


@dataclass(frozen=True, slots=True, config=_STRICT)
class Disk:
    """Where the rows of tables larger than memory are read from; plans do not depend on it.

    Attributes:
        reads_per_second: of 4 KiB at random places, as many at once as a server has.
        read_seconds: of one alone.
    """

    reads_per_second: float = Field(gt=0)
    read_seconds: float = Field(gt=0)


@dataclass(frozen=True, slots=True, config=_STRICT)
class Topology:
    """The ranks that shards are placed on.

    Attributes:
        name: as written, such as `cpu:2`, or from its file.
        network_bandwidth: between hosts that all run towers, bytes a second.
        front: where the only tower runs; None: on every host.
    """

    name: str
    devices: tuple[Device, ...]
    network_bandwidth: float = NETWORK_BANDWIDTH
    front: FrontCosts | None = None

    @property
    def has_gpus(self) -> bool:
        """Whether a rank is a GPU; then tables lie as devices read them, on all ranks."""
        return any(device.kind == "cuda" for device in self.devices)

    def only(self, ranks: Sequence[int]) -> "Topology":
        """The topology of some of its ranks, in their order."""
        return replace(self, devices=tuple(self.devices[rank] for rank in ranks))

    def is_asked(self, device: Device) -> bool:
        """Whether a front asks for what lies there."""
        return self.front is not None and device.host != self.front.host


def device_of(model: DeviceModel, *, memory_bytes: int | None, host: int = 0) -> Device:
    """A rank on a GPU.

    Args:
        memory_bytes: bytes of tables that it may hold; None is no limit.
    """
    return Device(
        kind=model.kind,
        host=host,
        memory_bytes=memory_bytes,
        memory_bandwidth=model.memory_bandwidth,
        host_bandwidth=model.host_bandwidth,
        peer_bandwidth=model.peer_bandwidth,
        launch_seconds=model.launch_seconds,
        granule_bytes=model.granule_bytes,
        cache_bytes=model.cache_bytes,
        cache_bandwidth=model.cache_bandwidth,
    )
