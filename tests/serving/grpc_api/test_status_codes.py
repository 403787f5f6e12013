import grpc
import pytest

from serving.grpc_api.status_codes import PUSHBACK, grpc_code, trailing_metadata
from serving.status import Status, StatusCode


def test_codes_have_grpcs_names_and_numbers() -> None:
    ours = [(code.name, code.number) for code in StatusCode]
    assert ours == [(code.name, code.value[0]) for code in grpc.StatusCode]
    assert [grpc_code(code) for code in StatusCode] == list(grpc.StatusCode)


@pytest.mark.parametrize(("seconds", "milliseconds"), [(0.0012, "2"), (1.5, "1500"), (0.0, "0")])
def test_the_time_of_the_next_try_is_in_whole_milliseconds(
    seconds: float, milliseconds: str
) -> None:
    status = Status(StatusCode.RESOURCE_EXHAUSTED, "full", seconds)
    assert trailing_metadata(status) == ((PUSHBACK, milliseconds),)


def test_what_says_no_time_has_no_metadata() -> None:
    assert trailing_metadata(Status(StatusCode.UNAVAILABLE, "draining")) == ()
