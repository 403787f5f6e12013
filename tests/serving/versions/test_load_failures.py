import logging

import pytest

from serving.versions.load_failures import FailedLoad, LoadFailureLog


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return found


def failed(model: str, version: int) -> FailedLoad:
    return FailedLoad(model, version, "verify", f"{model} {version} is damaged")


def test_a_failure_is_told_at_once_with_its_phase(caplog: pytest.LogCaptureFixture) -> None:
    log = LoadFailureLog()
    log.add(failed("a", 2))
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert told(caplog) == ["a version 2 is not served, it failed at 'verify': a 2 is damaged"]
    log.add(FailedLoad("a", 3, None, "no answer"))
    assert caplog.records[0].levelno == logging.WARNING
    assert told(caplog) == ["a version 3: cannot be fetched now: no answer"]


def test_what_a_start_ends_with_is_left_to_who_raises_it(caplog: pytest.LogCaptureFixture) -> None:
    log = LoadFailureLog()
    log.hold_back()
    for each in (failed("a", 2), failed("a", 1), failed("b", 7)):
        log.add(each)
    (second,) = told(caplog)
    assert "a version 1" in second
    assert log.first("a") == failed("a", 2)
    log.release(but=ValueError("a 2 is damaged"))
    (other,) = told(caplog)
    assert "b version 7" in other
    log.add(failed("a", 3))
    assert "a version 3" in told(caplog)[0]


def test_a_start_that_succeeds_tells_what_it_went_without(caplog: pytest.LogCaptureFixture) -> None:
    log = LoadFailureLog()
    log.hold_back()
    log.add(failed("a", 2))
    assert told(caplog) == []
    log.release()
    assert "a version 2" in told(caplog)[0]
