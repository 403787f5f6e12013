"""Forked commands end, print and get their environment like started ones."""

import signal
import subprocess
from pathlib import Path

import pytest

from tests.support.forked_command import ForkedProcess, command_forker
from tests.support.servers import command, environment, run, start_command


@pytest.fixture(autouse=True)
def as_the_forker_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without variables of earlier tests, such as those of torch's compiler."""
    for name, value in command_forker().misfits(environment()).items():
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)


@pytest.mark.parametrize("words", [("--help",), ("predict",), ("verify", "nowhere")])
def test_a_forked_command_prints_and_ends_as_a_started_one(words: tuple[str, ...]) -> None:
    forked = run(*words)
    started = subprocess.run(
        command(*words), capture_output=True, text=True, check=False, env=environment()
    )
    assert forked.returncode == started.returncode
    # The program's name is the installed one's.
    module = "python -m serving.cli"
    assert forked.stdout == started.stdout.replace(module, "sharded-infer")
    assert forked.stderr == started.stderr.replace(module, "sharded-infer")


def test_what_an_import_may_have_read_makes_a_process_of_its_own() -> None:
    asked = environment()
    forker = command_forker()
    assert forker.fits(asked) and forker.fits(asked | {"SHARDED_INFER_PORT": "1"})
    assert not forker.fits(asked | {"OMP_NUM_THREADS": "7"})
    assert not forker.fits({name: asked[name] for name in asked if name != "PYTHONPATH"})


def test_a_program_breaks_one_command_and_no_later_one(tmp_path: Path) -> None:
    program = "import serving.cli\nserving.cli.MODULE = 'broken'\nprint(serving.cli.MODULE)\n"
    program += "import sys\nprint(sys.argv[1:])\nserving.cli.main()\n"
    broken = run("verify", "nowhere", program=program)
    assert broken.stdout == "broken\n['verify', 'nowhere']\n"
    whole = run("verify", "nowhere")
    assert whole.stdout == ""
    assert (broken.returncode, broken.stderr) == (whole.returncode, whole.stderr) != (0, "")
    again = run("verify", program="import serving.cli\nprint(hasattr(serving.cli, 'MODULE'))\n")
    assert again.stdout == "False\n"


def test_a_signal_that_ends_it_is_its_exit_code(tmp_path: Path) -> None:
    with (tmp_path / "log").open("w") as log:
        process = start_command("predict", "-", "-r", tmp_path, stderr=log)
    assert isinstance(process, ForkedProcess)
    process.kill()
    assert process.wait(30) == -signal.SIGKILL
    assert process.poll() == -signal.SIGKILL
    # The process is gone, and no process is signalled.
    process.terminate()
    assert process.stdout is not None
    process.stdout.close()
