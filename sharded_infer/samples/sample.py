"""One sample: inputs by name, and where it stood."""

from collections.abc import Mapping

Sample = Mapping[str, object]


class LineSample(dict[str, object]):
    """A sample that came on a line of its own; `line` counts from 1, as editors do."""

    __slots__ = ("line",)

    def __init__(self, line: int, inputs: Mapping[str, object]) -> None:
        """Keeps both."""
        super().__init__(inputs)
        self.line = line


def place_of(number: int, sample: object) -> str:
    """Where a sample is, for people: its line, or its number, which counts from 0 as arrays do."""
    return f"line {sample.line}" if isinstance(sample, LineSample) else f"sample {number}"
