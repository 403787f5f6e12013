"""Topologies: the devices that a model's tables are laid out on, and what they can move."""

import difflib
import re
import tomllib
from pathlib import Path

import torch
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from sharded_infer.cards import CARDS, Card
from sharded_infer.errors import InputError, PlanError
from sharded_infer.sizes import parse_size

_PART = re.compile(
    r"(?P<card>[a-z][a-z0-9]*)(:(?P<count>[0-9]+))?(x(?P<size>[0-9]+(\.[0-9]+)?[KMGT]i?B))?"
)
_STRICT = ConfigDict(extra="forbid")
MAX_RANKS = 4096
# Of a card's memory, kept for the tower, activations and the runtime when no size is given.
RESERVED_SHARE = 0.15
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


def parse_topology(text: str) -> Topology:
    """Reads `cpu:2`, `h100:8x70GB`, several of these joined by `+`, `local`, or a TOML file's name.

    Args:
        text: a card's name (`sharded_infer/cards.py`), the number of ranks, and how many bytes of
            tables each may hold (GB is 1000^3, GiB 1024^3). Without a size, a GPU may hold its
            memory less 15%, and a CPU rank has no limit. `local` is
            the machine at hand. A text that ends in `.toml` is a file.

    Raises:
        PlanError: it does not read as a topology, or names an unknown card.
    """
    if text.endswith(".toml"):
        return load_topology(Path(text))
    if text == "local":
        return local_topology()
    devices: list[Device] = []
    for part in text.split("+"):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise PlanError(
                f"topology {text!r}: {part!r} is not CARD:COUNT or CARD:COUNTxMEMORY, "
                "such as cpu:2 or h100:8x70GB"
            )
        card = _card(match["card"], f"topology {text!r}")
        count = int(match["count"] or 1)
        if not 1 <= count <= MAX_RANKS:
            raise PlanError(f"topology {text!r}: {count} ranks, expected 1 to {MAX_RANKS}")
        memory = parse_size(match["size"], text) if match["size"] else _usable(card)
        devices += [device_of(card, memory_bytes=memory)] * count
    return Topology(text, tuple(devices))


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


def load_topology(path: Path) -> Topology:
    """Reads a topology file.

        name = "two-hosts"
        network_bandwidth = 25e9
        [[devices]]
        card = "h100"          # starting figures; any field of a device may follow
        count = 8
        host = 0
        memory = "70GB"

    Raises:
        PlanError: no such file, not TOML, or a field that is unknown or wrong; names it.
    """
    try:
        fields = tomllib.loads(path.read_text())
    except OSError as error:
        raise PlanError(f"topology {path}: cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise PlanError(f"topology {path}: not TOML: {error}") from error
    groups = fields.pop("devices", None)
    if not isinstance(groups, list) or not groups:
        raise PlanError(f"topology {path}: expected [[devices]], at least one")
    devices: list[Device] = []
    for number, group in enumerate(groups, start=1):
        devices += _devices(group, f"topology {path}: devices {number}")
    if len(devices) > MAX_RANKS:
        raise PlanError(f"topology {path}: {len(devices)} ranks, expected at most {MAX_RANKS}")
    values = {"name": path.stem, **fields, "devices": devices}
    try:
        return TypeAdapter(Topology).validate_python(values)
    except ValidationError as error:
        raise PlanError(f"topology {path}: {_first_problem(error)}") from error


def _devices(group: object, where: str) -> list[Device]:
    if not isinstance(group, dict):
        raise PlanError(f"{where}: expected a table of fields, got {group!r}")
    own = dict(group)
    card = _card(str(own.pop("card", "cpu")), where)
    count = own.pop("count", 1)
    if type(count) is not int or not 1 <= count <= MAX_RANKS:
        raise PlanError(f"{where}: count {count!r}, expected 1 to {MAX_RANKS}")
    if "memory" in own:
        try:
            own["memory_bytes"] = parse_size(str(own.pop("memory")), f"{where}: memory")
        except InputError as error:
            raise PlanError(str(error)) from error
    adapter = TypeAdapter(Device)
    fields = adapter.dump_python(device_of(card, memory_bytes=_usable(card))) | own
    try:
        return [adapter.validate_python(fields)] * count
    except ValidationError as error:
        raise PlanError(f"{where}: {_first_problem(error)}") from error


def _card(name: str, where: str) -> Card:
    if name not in CARDS:
        near = difflib.get_close_matches(name, CARDS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise PlanError(f"{where}: unknown card {name!r}, expected one of {', '.join(CARDS)}{hint}")
    return CARDS[name]


def _usable(card: Card) -> int | None:
    return round(card.memory_bytes * (1 - RESERVED_SHARE)) or None


def _first_problem(error: ValidationError) -> str:
    problem = error.errors(include_url=False)[0]
    place = ".".join(map(str, problem["loc"]))
    return f"{place}: {problem['msg']}, got {problem['input']!r}"


def local_topology() -> Topology:
    """Looks at the machine: its GPUs, or one CPU rank with the memory that is free.

    A share of 15% is kept for the tower, activations and the runtime.
    """
    if torch.cuda.is_available():
        devices = []
        for index in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(index)
            name = properties.name.lower()
            card = next((card for key, card in CARDS.items() if key in name), CARDS["cuda"])
            usable_bytes = round(properties.total_memory * (1 - RESERVED_SHARE))
            devices.append(device_of(card, memory_bytes=usable_bytes))
        return Topology("local", tuple(devices))
    free = _available_bytes()
    usable = None if free is None else round(free * (1 - RESERVED_SHARE))
    return Topology("local", (device_of(CARDS["cpu"], memory_bytes=usable),))


def _available_bytes() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return int(fields["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in fields else None
