import json
import logging
import sys
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from serving.observability.log_lines import (
    LogFormat,
    LogLevel,
    LogLines,
    configure_logs,
    name_process,
)
from serving.status import status_of

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


def test_a_time_is_in_utc_to_the_millisecond() -> None:
    made = record("x")
    made.created = 1_700_000_000.1239
    assert json_line(made)["time"] == "2023-11-14T22:13:20.123Z"


def test_what_a_client_sent_stays_in_its_field() -> None:
    assert json_line(record("x", request_id=HOSTILE))["request_id"] == HOSTILE


def test_an_extra_field_does_not_replace_a_standard_one() -> None:
    fields = json_line(record("said", level="none", pid=0))
    assert (fields["message"], fields["level"]) == ("said", "warning") and fields["pid"]


def test_a_value_that_json_lacks_is_written_in_words() -> None:
    assert json_line(record("x", path={1, 2}))["path"] == "{1, 2}"


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
    made = record(
        "loaded %s version %d", "ranker", 3, model="ranker", version=3, names={"default": 3}
    )
    line = LogLines(LogFormat.TEXT).format(made)
    assert line.endswith(" WARNING loaded ranker version 3 (names.default=3)")


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


def test_text_has_no_brackets_of_nested_values() -> None:
    made = record(
        "moved", names={"default": 3, "stable": 2}, kernels=["int8 native", "bf16 native"]
    )
    line = LogLines(LogFormat.TEXT).format(made)
    assert line.endswith(
        ' WARNING moved (names.default=3 names.stable=2 kernels="int8 native, bf16 native")'
    )
