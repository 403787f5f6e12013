import logging
import os
from dataclasses import replace

import pytest

from serving.observability.log_levels import LogControl, LogLevels


def test_each_level_has_its_own_switch() -> None:
    switches = {
        logging.DEBUG: (LogLevels(verbose_level=1), LogLevels()),
        logging.INFO: (LogLevels(), LogLevels(info=False)),
        logging.WARNING: (LogLevels(), LogLevels(warnings=False)),
        logging.ERROR: (LogLevels(), LogLevels(errors=False)),
    }
    for level, (on, off) in switches.items():
        assert on.allow(level) and not off.allow(level)
        assert all(off.allow(other) for other in set(switches) - {level, logging.DEBUG})


def test_a_change_in_one_process_holds_in_another(caplog: pytest.LogCaptureFixture) -> None:
    control, logger = LogControl(), logging.getLogger("test_log_control")
    logger.setLevel(logging.INFO)
    control.attach(logger)
    try:
        logger.info("first")
        child = os.fork()
        if child == 0:
            control.change(lambda levels: replace(levels, info=False, verbose_level=1))
            os._exit(0)
        os.waitpid(child, 0)
        logger.info("second")
        logger.debug("third")
    finally:
        logger.removeFilter(control)
    assert [record.message for record in caplog.records] == ["first", "third"]
