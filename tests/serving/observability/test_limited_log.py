import io
import logging
from collections.abc import Iterator

import pytest

from serving.observability.log_lines import LimitedLog, LogFormat, LogLines

SECRET = "Bearer s3cr3t-t0ken"  # noqa: S105


class Clock:
    seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


class Log:
    def __init__(self) -> None:
        self.clock = Clock()
        self.handler = LimitedLog(self.clock)
        self.handler.setStream(io.StringIO())
        self.handler.setFormatter(LogLines(LogFormat.TEXT))
        self.loggers: list[logging.Logger] = []

    def named(self, name: str) -> logging.Logger:
        logger = logging.Logger(name)
        logger.addHandler(self.handler)
        return logger

    def lines(self) -> list[str]:
        """Written lines, without times."""
        written = self.handler.stream.getvalue()  # type: ignore[attr-defined]
        return [
            line.split(" ", 2)[2] if line[:1] == "2" else line for line in written.split("\n")[:-1]
        ]


@pytest.fixture
def log() -> Iterator[Log]:
    log = Log()
    yield log
    log.handler.close()


def test_a_line_comes_once_a_second_and_says_how_many_did_not(log: Log) -> None:
    ours = log.named("sharded_infer")
    for _ in range(5):
        ours.warning("full")
    assert log.lines() == ["WARNING full"]
    log.clock.seconds += 0.9
    ours.warning("full")
    assert log.lines() == ["WARNING full"]
    log.clock.seconds += 0.1
    ours.warning("full")
    # The last of five is written, for four more; what came with it waits.
    assert log.lines() == ["WARNING full", "WARNING full (left_out=4)"]


def test_other_lines_and_fields_are_not_held_back(log: Log) -> None:
    ours = log.named("sharded_infer")
    for number in range(3):
        ours.info("version %d", number)
        ours.info("slow", extra={"request_id": str(number)})
    assert len(log.lines()) == 6


def test_what_was_left_out_last_is_told_by_the_next_record_or_at_the_end(log: Log) -> None:
    ours = log.named("sharded_infer")
    for _ in range(3):
        ours.warning("full")
    log.clock.seconds += 5
    ours.warning("draining")
    assert log.lines() == ["WARNING full", "WARNING full (left_out=1)", "WARNING draining"]
    for _ in range(4):
        ours.warning("draining")
    log.handler.close()
    assert log.lines()[3:] == ["WARNING draining (left_out=3)"]


def test_a_flood_of_different_lines_is_not_kept(log: Log) -> None:
    ours = log.named("sharded_infer")
    for number in range(20_000):
        ours.info("%d", number)
    assert len(log.handler._written) < 5000 and len(log.lines()) == 20_000


def test_lines_that_may_come_again_are_not_kept(log: Log) -> None:
    ours = log.named("sharded_infer")
    for number in range(100):
        ours.info("version %d", number)
        log.clock.seconds += 0.5
    assert len(log.handler._written) <= 2
    ours.info("version 99")
    assert log.lines() == [f"INFO version {number}" for number in range(100)]


@pytest.mark.parametrize("name", ["grpc._server", "grpc._cython.cygrpc", "asyncio",
                                  "concurrent.futures"])  # fmt: skip
def test_no_word_of_a_client_is_written_for_a_library(log: Log, name: str) -> None:
    library = log.named(name)
    library.error("Invalid encoding on %s", SECRET.encode())
    library.error(f"Exception calling application: {SECRET}")
    library.error(f"Exception in callback data_received({SECRET!r})\nhandle: <{SECRET}>")
    library.error({"header": SECRET})
    try:
        raise ValueError(SECRET) from KeyError(SECRET)
    except ValueError:
        library.exception("Failed: %r", SECRET, stack_info=True)
    said = "\n".join(log.lines())
    assert "s3cr3t" not in said
    assert f"ERROR {name}: Invalid encoding on\n" in said
    assert f"ERROR {name}: Exception calling application\n" in said
    # Where it was raised and what it was is enough to find a bug by.
    assert "WithheldError: ValueError" in said and "test_no_word_of_a_client" in said


def test_the_same_from_a_library_is_one_line_whatever_a_client_sent(log: Log) -> None:
    library = log.named("grpc._cython.cygrpc")
    for number in range(1000):
        library.error("Invalid encoding on %s", b"\xff" * number)
    assert log.lines() == ["ERROR grpc._cython.cygrpc: Invalid encoding on"]
