"""Topologies: the devices that a model's tables are laid out on, and what they can move."""

from collections.abc import Sequence

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from sharded_infer.cards import CARDS, Card

_STRICT = ConfigDict(extra="forbid")
# Between hosts, bytes a second: 100 Gbit/s Ethernet.
NETWORK_BANDWIDTH = 12.5e9


@dataclass(frozen=True, slots=True, config=_STRICT)
class Device:
    """One rank of a topology; bandwidths are bytes a second in one direction.

    Attributes:
        kind: `cpu`, `cuda`, or `host`: pinned memory that a card beside it reads.
        host: index of its host.
        memory_bytes: how many bytes of tables it may hold; None is no limit.
        memory_bandwidth: of device memory.
        host_bandwidth: ids from the host to the device.
        peer_bandwidth: pooled vectors to the tower on the same host; None where they are written
            straight into the tower's input.
        launch_seconds: floor of one fused call.
        granule_bytes: the least that one access moves.
        cache_bytes: of the last cache before device memory.
        cache_bandwidth: of that cache.
    """

    kind: str = "cpu"
    host: int = 0
    memory_bytes: int | None = None
    memory_bandwidth: float = Field(default=CARDS["cpu"].memory_bandwidth, gt=0)
    host_bandwidth: float = Field(default=CARDS["cpu"].host_bandwidth, gt=0)
    peer_bandwidth: float | None = Field(default=None, gt=0)
    launch_seconds: float = Field(default=CARDS["cpu"].launch_seconds, ge=0)
    granule_bytes: int = Field(default=CARDS["cpu"].granule_bytes, ge=1)
    cache_bytes: int = Field(default=CARDS["cpu"].cache_bytes, ge=0)
    cache_bandwidth: float = Field(default=CARDS["cpu"].cache_bandwidth, gt=0)


@dataclass(frozen=True, slots=True, config=_STRICT)
class Topology:
    """The ranks that shards are placed on.

    Attributes:
        name: as it was written, such as `cpu:2`, or a file's own name for it.
        devices: one entry a rank.
        network_bandwidth: between hosts, bytes a second.
    """

    name: str
    devices: tuple[Device, ...]
    network_bandwidth: float = NETWORK_BANDWIDTH

    @property
    def has_cards(self) -> bool:
        """Whether a rank is a card; then tables lie as devices read them, on all ranks."""
        return any(device.kind == "cuda" for device in self.devices)

    def only(self, ranks: Sequence[int]) -> "Topology":
        """The topology of some of its ranks, in their order."""
        return Topology(
            self.name, tuple(self.devices[rank] for rank in ranks), self.network_bandwidth
        )


def device_of(card: Card, *, memory_bytes: int | None, host: int = 0) -> Device:
    """A rank on a card.

    Args:
        card: the card.
        memory_bytes: how many bytes of tables it may hold; None is no limit.
        host: index of its host.
    """
    return Device(
        kind=card.kind,
        host=host,
        memory_bytes=memory_bytes,
        memory_bandwidth=card.memory_bandwidth,
        host_bandwidth=card.host_bandwidth,
        peer_bandwidth=card.peer_bandwidth,
        launch_seconds=card.launch_seconds,
        granule_bytes=card.granule_bytes,
        cache_bytes=card.cache_bytes,
        cache_bandwidth=card.cache_bandwidth,
    )
