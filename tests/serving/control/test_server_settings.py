import pytest

from serving.control.server_settings import Setting, changed_levels, log_settings
from serving.observability.log_levels import LogLevels
from sharded_infer.errors import RequestError


def test_changes_leave_what_they_do_not_name() -> None:
    changed = changed_levels(LogLevels(errors=False), {"log_info": False, "log_verbose_level": 2})
    assert changed == LogLevels(info=False, errors=False, verbose_level=2)


def test_all_settings_can_be_sent_back_unchanged() -> None:
    levels = LogLevels(warnings=False, verbose_level=1)
    assert changed_levels(LogLevels(), log_settings(levels)) == levels


def test_a_setting_without_a_value_stays_as_it_is() -> None:
    names = dict.fromkeys(log_settings(LogLevels()))
    assert changed_levels(LogLevels(info=False), names) == LogLevels(info=False)


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"log_info": 1}, "uint32_param"),
        ({"log_verbose_level": True}, "bool_param"),
        ({"log_file": False}, "bool_param"),
        ({"log_errors": ""}, "string_param"),
        ({"unknown": None}, "None"),
    ],
)
def test_a_value_of_another_kind_is_refused(changes: dict[str, Setting | None], kind: str) -> None:
    with pytest.raises(RequestError, match=f"got {kind}$"):
        changed_levels(LogLevels(), changes)
