"""Which status each exception becomes."""

import logging
import re

import grpc
import pytest

from serving.status import DeadlineError, UnavailableError, status_of
from sharded_infer import errors

StatusCode = grpc.StatusCode


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
    ],
)
def test_what_is_refused_keeps_its_message(
    error: Exception, code: grpc.StatusCode, caplog: pytest.LogCaptureFixture
) -> None:
    assert status_of(error) == (code, "as said")
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
        code, message = status_of(error)
        other = status_of(error)[1]
    assert code is StatusCode.INTERNAL and "secret" not in message
    found = re.search(r"internal error ([0-9a-f]{12});", message)
    assert found is not None and message != other
    assert found[1] in caplog.text and "secret" in caplog.text


def test_every_error_of_the_project_has_a_code_of_its_own_choice() -> None:
    # What is not in the table is a bug of ours, or never raised while serving: these alone may be.
    internal = {"InternalError", "GateError", "ShardedInferError", "StorageError"}
    for name in errors.__all__:
        code, _ = status_of(getattr(errors, name)("said"))
        assert (code is StatusCode.INTERNAL) == (name in internal), name
