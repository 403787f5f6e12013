"""The user's choice of devices."""

from dataclasses import dataclass

from sharded_infer.errors import InputError


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """The user's choice of devices.

    Attributes:
        gpus: CUDA device number of each rank on a GPU; empty assigns one device to each, in order.
        simulated: simulate the devices on the host; slower, with the same results.
        max_batch: largest usual batch size, in samples; None uses the spec's.
    """

    gpus: tuple[int, ...] = ()
    simulated: bool = False
    max_batch: int | None = None


def parse_gpus(text: str | None) -> tuple[int, ...]:
    """Parses CUDA device numbers such as `0,0,1`; raises InputError for other parts."""
    if text is None:
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise InputError(f"gpus: expected numbers such as 0,0,1, got {text!r}")
    return tuple(map(int, parts))
