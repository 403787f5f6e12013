"""Topologies: the devices that a model's tables are laid out on."""

import re
from dataclasses import dataclass

from sharded_infer.errors import PlanError

_PART = re.compile(r"(?P<kind>[a-z]+)(:(?P<count>[0-9]+))?(x(?P<size>[0-9.]+)(?P<unit>[KMGT]i?B))?")
_UNITS = {
    prefix + ending: base**power
    for power, prefix in enumerate("KMGT", start=1)
    for ending, base in (("B", 1000), ("iB", 1024))
}
KINDS = ("cpu",)


@dataclass(frozen=True, slots=True)
class Device:
    """One rank of a topology.

    Attributes:
        kind: what it is; `cpu` is a share of the host's memory.
        memory_bytes: how many bytes of tables it may hold; None is no limit.
    """

    kind: str
    memory_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Topology:
    """The ranks that shards are placed on.

    Attributes:
        name: as it was written, such as `cpu:2`.
        devices: one entry a rank.
    """

    name: str
    devices: tuple[Device, ...]


def parse_topology(text: str) -> Topology:
    """Reads `cpu:2`, `cpu:2x16GB` or several of these joined by `+`.

    Args:
        text: kind, number of ranks, and memory a rank (GB is 1000^3 bytes, GiB is 1024^3).

    Raises:
        PlanError: it does not read as a topology, or names a kind of device unknown here.
    """
    devices: list[Device] = []
    for part in text.split("+"):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise PlanError(
                f"topology {text!r}: {part!r} is not KIND:COUNT or KIND:COUNTxMEMORY, "
                "such as cpu:2 or cpu:2x16GB"
            )
        if match["kind"] not in KINDS:
            raise PlanError(
                f"topology {text!r}: unknown device kind {match['kind']!r}, "
                f"expected one of {', '.join(KINDS)}"
            )
        count = int(match["count"] or 1)
        if not 1 <= count <= 1024:
            raise PlanError(f"topology {text!r}: {count} ranks, expected 1 to 1024")
        try:
            memory = round(float(match["size"]) * _UNITS[match["unit"]]) if match["size"] else None
        except ValueError as error:
            raise PlanError(f"topology {text!r}: {match['size']!r} is not a size") from error
        devices += [Device(match["kind"], memory)] * count
    return Topology(text, tuple(devices))
