"""A process that a thread starts, probes, and restarts when it ends."""

import json
import logging
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import monotonic
from typing import Any

_log = logging.getLogger("sharded_infer")
_LOOK_SECONDS = 0.2
_PROBE_SECONDS = 1.0
# After so long without an answer a process is restarted.
_SILENT_SECONDS = 60.0
_LEAST_BACKOFF_SECONDS, _MOST_BACKOFF_SECONDS = 0.5, 30.0
# Added to a process's own time to drain.
_PATIENCE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Health:
    """Result of a probe; versions are the MODEL@VERSION that the process reported."""

    is_healthy: bool
    versions: tuple[str, ...] = ()
    answers: bool = True
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ProcessState:
    """State since the thread began; `ready` is the line of JSON that the process printed.

    Commands of another release read it during `cluster roll`: its fields stay as they are.
    """

    process_id: int | None = None
    ready: dict[str, Any] | None = None
    is_healthy: bool = False
    versions: tuple[str, ...] = ()
    restarts: int = 0
    was_ready: bool = False
    problem: str = ""


# Probes a process, given its line of JSON.
Probe = Callable[[dict[str, Any]], Health]


class ManagedProcess:
    """Runs a command of `sharded-infer` until `stop`; it ends when this process does."""

    def __init__(self, words: Sequence[str], probe: Probe, *, drain_seconds: float) -> None:
        """Start the thread, which runs a command line with `--json`, and has time to drain."""
        command = [sys.executable, "-m", "serving.cluster.child", str(os.getpid()), *words]
        self._command, self._probe = command, probe
        self._end_seconds = drain_seconds + _PATIENCE_SECONDS
        self._state = ProcessState()
        self._stop = threading.Event()
        # The kernel ends the process with the thread that started it.
        self._thread = threading.Thread(target=self._run, name="process", daemon=True)
        self._thread.start()

    @property
    def state(self) -> ProcessState:
        """Current state."""
        return self._state

    def stop(self) -> None:
        """Let the process drain and end, and wait for it."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        backoff = _LEAST_BACKOFF_SECONDS
        while True:
            try:
                problem = self._run_once()
            except OSError as error:
                problem = f"the process cannot be started: {error}"
            was_ready = self._state.ready is not None
            self._state = ProcessState(
                restarts=self._state.restarts,
                was_ready=self._state.was_ready or was_ready,
                problem=problem,
            )
            if self._stop.is_set():
                return
            _log.warning(problem)
            backoff = (
                _LEAST_BACKOFF_SECONDS if was_ready else min(2 * backoff, _MOST_BACKOFF_SECONDS)
            )
            if self._stop.wait(backoff):
                return
            self._state = replace(self._state, restarts=self._state.restarts + 1)

    def _run_once(self) -> str:
        process = subprocess.Popen(  # noqa: S603 - our own command
            self._command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._state = replace(self._state, process_id=process.pid)
        last_line = ""

        def pass_errors_on() -> None:
            nonlocal last_line
            if process.stderr is None:
                return
            with process.stderr as stream:
                for line in stream:
                    sys.stderr.write(line)
                    last_line = line.strip() or last_line

        errors = threading.Thread(target=pass_errors_on, name="errors", daemon=True)
        errors.start()
        try:
            self._watch(process)
        finally:
            self._state = replace(self._state, is_healthy=False)
            code = self._end(process)
        errors.join(_PATIENCE_SECONDS)
        return f"process {process.pid} ended with exit code {code}: {last_line}"

    def _watch(self, process: "subprocess.Popen[str]") -> None:
        """Return when the process has ended, or should end."""
        next_probe = 0.0
        answered = monotonic()
        while process.poll() is None and not self._stop.wait(_LOOK_SECONDS):
            if self._state.ready is None:
                answered, stdout = monotonic(), process.stdout
                # The process writes its one line in a single write.
                if stdout is not None and select.select([stdout], [], [], 0)[0]:
                    line = stdout.readline()
                    if line.startswith("{"):
                        self._state = replace(self._state, ready=json.loads(line))
            elif monotonic() >= next_probe:
                health = self._ask(self._state.ready)
                self._state = replace(
                    self._state,
                    is_healthy=health.is_healthy,
                    versions=health.versions,
                    problem=health.problem,
                )
                next_probe = monotonic() + _PROBE_SECONDS
                if health.answers:
                    answered = monotonic()
                elif monotonic() - answered > _SILENT_SECONDS:
                    _log.warning("process %d does not answer and is killed", process.pid)
                    process.kill()

    def _ask(self, ready: dict[str, Any]) -> Health:
        try:
            return self._probe(ready)
        except Exception as error:
            # A bug of ours in a probe must not end the process.
            _log.exception("internal error in asking a process")
            return Health(False, problem=f"it cannot be asked: {error}")

    def _end(self, process: "subprocess.Popen[str]") -> int:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        try:
            code = process.wait(self._end_seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        if process.stdout is not None:
            process.stdout.close()
        return code
