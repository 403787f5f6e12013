import io
import json
import logging
import sys
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from serving.observability.log_lines import (
    LimitedLog,
    LogFormat,
    LogLevel,
    LogLines,
    configure_logs,
    name_process,
)
from serving.status import status_of

SECRET = "Bearer s3cr3t-t0ken"  # noqa: S105
HOSTILE = 'a"b\n2026-01-01 ERROR forged\x1b[31m \u2028 \udc80'


def record(message: str, *args: object, error: bool = False, **extra: object) -> logging.LogRecord:
    return logging.getLogger("sharded_infer").makeRecord(
        "sharded_infer", logging.WARNING, "file.py", 1, message, args,
        sys.exc_info() if error else None, extra=extra,
    )  # fmt: skip


def json_line(made: logging.LogRecord) -> dict[str, Any]:
    line = LogLines(LogFormat.JSON).format(made)
    assert "\n" not in line and line.isascii()
    fields: dict[str, Any] = json.loads(line)
    return fields


def test_a_line_of_json_has_the_event_and_its_fields() -> None:
    made = record("%s: %d", "ranker", 3, model="ranker", version=3)
    fields = json_line(made)
    moment = datetime.fromisoformat(fields.pop("time"))
    assert moment.timestamp() == pytest.approx(made.created, abs=0.001)
    assert fields == {
        "level": "warning",
        "logger": "sharded_infer",
        "message": "ranker: 3",
        "process": "server",
        "pid": made.process,
        "model": "ranker",
        "version": 3,
    }


def test_fields_have_times_in_utc_and_whatever_a_client_sent() -> None:
    made = record("said", request_id=HOSTILE, path={1, 2}, level="none", pid=0)
    made.created = 1_700_000_000.1239
    fields = json_line(made)
    assert fields["time"] == "2023-11-14T22:13:20.123Z"
    assert (fields["request_id"], fields["path"]) == (HOSTILE, "{1, 2}")
    # An extra field does not replace a standard one.
    assert fields["level"] == "warning" and fields["pid"]


def test_an_exception_is_a_field_with_its_traceback() -> None:
    try:
        raise ValueError(HOSTILE)
    except ValueError:
        fields = json_line(record("internal error", error=True))
    assert fields["exception"]["type"] == "ValueError"
    assert fields["exception"]["message"] == HOSTILE
    assert fields["exception"]["traceback"][0] == "Traceback (most recent call last):"


def test_text_has_the_same_fields_behind_the_message_and_stays_one_line() -> None:
    line = LogLines(LogFormat.TEXT).format(record("said", model="ranker", request_id=HOSTILE))
    assert "\n" not in line and "\x1b" not in line
    assert ' WARNING said (model="ranker" request_id=' in line
    assert LogLines(LogFormat.TEXT).format(record("said")).endswith(" WARNING said")


def test_text_does_not_repeat_the_version_that_a_message_names() -> None:
    fields = {"model": "ranker", "version": 3, "names": {"default": 3}, "kernels": ["a", "b"]}
    line = LogLines(LogFormat.TEXT).format(record("loaded %s version %d", "ranker", 3, **fields))
    # Nor has it brackets of nested values.
    said = 'loaded ranker version 3 (names.default=3 kernels="a, b")'
    assert line.endswith(f" WARNING {said}")


def test_a_process_says_its_name() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(LogLines(LogFormat.JSON))
    logging.getLogger().addHandler(handler)
    try:
        name_process("worker 3")
        assert json.loads(handler.format(record("x")))["process"] == "worker 3"
    finally:
        logging.getLogger().removeHandler(handler)


def test_an_internal_error_says_whose_request_it_was(caplog: pytest.LogCaptureFixture) -> None:
    fields = {"model": "ranker", "version": 3, "request_id": "a-1"}
    words = status_of(ZeroDivisionError("inside"), lambda: fields).message
    (made,) = caplog.records
    logged = json_line(made)
    assert logged["error_id"] in words and "inside" not in words
    assert logged.items() >= fields.items()
    assert logged["exception"]["type"] == "ZeroDivisionError"


@pytest.fixture
def root_handlers() -> Iterator[list[logging.Handler]]:
    root, before = logging.getLogger(), list(logging.getLogger().handlers)
    level = logging.getLogger("sharded_infer").level
    yield root.handlers
    root.handlers[:] = before
    logging.getLogger("sharded_infer").setLevel(level)


def test_a_handler_that_a_library_made_is_replaced(root_handlers: list[logging.Handler]) -> None:
    root_handlers[:] = [logging.StreamHandler()]
    configure_logs(LogFormat.TEXT, LogLevel.ERROR)
    (handler,) = root_handlers
    assert isinstance(handler.formatter, LogLines)
    assert not logging.getLogger("sharded_infer").isEnabledFor(logging.WARNING)


def test_a_program_that_keeps_its_own_log_keeps_it(root_handlers: list[logging.Handler]) -> None:
    kept = logging.NullHandler()
    root_handlers[:] = [logging.StreamHandler(), kept]
    configure_logs(LogFormat.TEXT, LogLevel.DEBUG)
    assert kept in root_handlers and len(root_handlers) == 2
    assert logging.getLogger("sharded_infer").isEnabledFor(logging.DEBUG)


class Log:
    def __init__(self) -> None:
        self.seconds = 100.0
        self.handler = LimitedLog(lambda: self.seconds)
        self.handler.setStream(io.StringIO())
        self.handler.setFormatter(LogLines(LogFormat.TEXT))

    def named(self, name: str) -> logging.Logger:
        logger = logging.Logger(name)
        logger.addHandler(self.handler)
        return logger

    def lines(self) -> list[str]:
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
    log.seconds += 0.9
    ours.warning("full")
    assert log.lines() == ["WARNING full"]
    log.seconds += 0.1
    ours.warning("full")
    # The last of five is written, for four more; what came with it waits.
    assert log.lines() == ["WARNING full", "WARNING full (left_out=4)"]


def test_what_was_left_out_last_is_told_by_the_next_record_or_at_the_end(log: Log) -> None:
    ours = log.named("sharded_infer")
    for _ in range(3):
        ours.warning("full")
    log.seconds += 5
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
        log.seconds += 0.5
    assert len(log.handler._written) <= 2
    ours.info("version 99")
    assert log.lines() == [f"INFO version {number}" for number in range(100)]


@pytest.mark.parametrize("name", ["grpc._server", "asyncio", "concurrent.futures"])
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
