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
    """One rank of a topology, with the figures of a `DeviceModel`.

    `memory_bytes` are of tables that it may hold; None is no limit.
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
    """The process with the tower, and its costs of asking other hosts for their sums.

    The defaults are near what `calibrate` measured over loopback (docs/planner-search.md).

    Attributes:
        host: of its own ranks; None: it holds no rows.
        call_seconds: of its processor, for each host that it asks.
        round_trip_seconds: of a call without lookups.
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
    """Source of rows of tables larger than memory; plans do not depend on it.

    Random 4 KiB blocks: `reads_per_second` at a server's concurrency, `read_seconds` of one alone.
    """

    reads_per_second: float = Field(gt=0)
    read_seconds: float = Field(gt=0)


@dataclass(frozen=True, slots=True, config=_STRICT)
class Topology:
    """The ranks that hold shards, named as written (`cpu:2`), or by their file.

    `network_bandwidth` is between hosts that all run towers, bytes a second; `front` is the only
    tower's process, None: every host has a tower.
    """

    name: str
    devices: tuple[Device, ...]
    network_bandwidth: float = NETWORK_BANDWIDTH
    front: FrontCosts | None = None

    @property
    def has_gpus(self) -> bool:
        """True if a rank is a GPU; all ranks then use the device layout."""
        return any(device.kind == "cuda" for device in self.devices)

    def only(self, ranks: Sequence[int]) -> "Topology":
        """The topology of some of its ranks, in their order."""
        return replace(self, devices=tuple(self.devices[rank] for rank in ranks))

    def is_asked(self, device: Device) -> bool:
        """True if a front asks this device's host."""
        return self.front is not None and device.host != self.front.host


def device_of(model: DeviceModel, *, memory_bytes: int | None, host: int = 0) -> Device:
    """A rank on a GPU; `memory_bytes` of tables that it may hold, None is no limit."""
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
