"""What users say of devices."""

from dataclasses import dataclass, field

from sharded_infer.errors import InputError


@dataclass(frozen=True, slots=True)
class DeviceChoice:
    """What a user says of devices.

    Attributes:
        cards: the CUDA device of each rank that is a card, by number; empty: one each, in order.
        rehearsed: play the devices on the host: slow, the same numbers.
        max_batch: samples of a usual batch, at most; None: as the spec says.
    """

    cards: tuple[int, ...] = field(default=())
    rehearsed: bool = False
    max_batch: int | None = None


def parse_cards(text: str | None) -> tuple[int, ...]:
    """Numbers of CUDA devices, as users write them: `0,0,1`.

    Raises:
        InputError: something is no number.
    """
    if text is None:
        return ()
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() for part in parts):
        raise InputError(f"cards: expected numbers such as 0,0,1, got {text!r}")
    return tuple(map(int, parts))
