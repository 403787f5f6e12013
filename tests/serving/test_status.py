import logging
import re

import pytest

from serving.errors import DeadlineError, QueueFullError, UnavailableError
from serving.status import Status, StatusCode, status_of
from sharded_infer import errors


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.RequestError("as said"), StatusCode.INVALID_ARGUMENT),
        (errors.InputError("as said"), StatusCode.INVALID_ARGUMENT),
        (errors.RequestTooLargeError("as said"), StatusCode.RESOURCE_EXHAUSTED),
        (errors.NotFoundError("as said"), StatusCode.NOT_FOUND),
        (UnavailableError("as said"), StatusCode.UNAVAILABLE),
        (DeadlineError("as said"), StatusCode.DEADLINE_EXCEEDED),
        (errors.ArtifactError("as said"), StatusCode.UNAVAILABLE),
        (errors.ShardHostError("as said"), StatusCode.UNAVAILABLE),
    ],
)
def test_what_is_refused_keeps_its_message(
    error: Exception, code: StatusCode, caplog: pytest.LogCaptureFixture
) -> None:
    assert status_of(error) == Status(code, "as said")
    assert caplog.records == []


@pytest.mark.parametrize(
    "error",
    [
        errors.InternalError("secret"),
        ValueError("secret"),
        KeyError("secret"),
        MemoryError("secret"),
        RuntimeError("secret"),
    ],
)
def test_a_bug_of_ours_is_an_id_that_the_log_has_too(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, logger="sharded_infer"):
        status, other = status_of(error), status_of(error)
    assert status.code is StatusCode.INTERNAL and "secret" not in status.message
    found = re.search(r"internal error ([0-9a-f]{12});", status.message)
    assert found is not None and status != other
    assert found[1] in caplog.text and "secret" in caplog.text


def test_what_may_be_tried_again_says_when() -> None:
    status = status_of(QueueFullError("as said", retry_seconds=0.0123))
    assert status == Status(StatusCode.RESOURCE_EXHAUSTED, "as said", retry_seconds=0.0123)


def test_codes_that_clients_tell_apart_have_http_statuses_of_their_own() -> None:
    other = {StatusCode[name] for name in (
        "UNKNOWN", "FAILED_PRECONDITION", "ABORTED", "OUT_OF_RANGE", "DATA_LOSS",
    )}  # fmt: skip
    numbers = [code.http_status for code in StatusCode if code not in other]
    assert len(set(numbers)) == len(numbers)
    assert {code.http_status for code in other} == {500}
    assert StatusCode.RESOURCE_EXHAUSTED.http_status == 429


def test_every_error_of_the_project_has_a_code_of_its_own_choice() -> None:
    # What is not in the table is a bug of ours, or never raised while serving: these alone may be.
    internal = {"InternalError", "GateError", "ShardedInferError", "StorageError"}
    for name in errors.__all__:
        code = status_of(getattr(errors, name)("said")).code
        assert (code is StatusCode.INTERNAL) == (name in internal), name
