"""Walks a page: runs its code blocks in order, as somebody does who follows it.

It has a network of its own, in which the addresses of the pages lie, so that commands and code run
as they are written. Commands and Python are forked from a process that has imported torch.
"""

import ctypes
import json
import os
import re
import shlex
import signal
import subprocess
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import IO

from tests.docker.prometheus_server import is_ready
from tests.docs.blocks import Block, Command, commands_of
from tests.support.forked_command import CommandForker, ForkedProcess, environment
from tests.support.waiting import until

# Hosts that the pages name, all of them this machine.
_NAMES = ("localhost", "ranker")
_ADDRESSES = ("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4")
_NEW_MOUNTS_AND_NETWORK = 0x00020000 | 0x40000000
_SECONDS = 120.0
# A page's blocks of Python share their names, as cells of a notebook do.
_NOTEBOOK = """
import json, sys
cells = {"__name__": "__main__"}
for line in sys.stdin:
    name, code = json.loads(line)
    exec(compile(code, name, "exec"), cells)
    print("\\0", flush=True)
"""
_FILE = re.compile(r"# (\w+\.(?:toml|yml))\n")
# A hash, or a number with its unit; and what is counted, as one or several.
_NUMBER = re.compile(r"-?\b[0-9a-f]{16}\b|-?\d[\d,.]*(e[-+]?\d+)?( [kMGT]?B)?")
_COUNTED = re.compile(r"(# (\w+ )?\w+?)s\b")


@contextmanager
def own_network(hosts: Path) -> Iterator[ThreadPoolExecutor]:
    """A thread and its children in a network of their own, where `hosts` is /etc/hosts; for root.

    Raises OSError or subprocess.CalledProcessError where there may be none.
    """
    hosts.write_text(f"127.0.0.1 {' '.join(_NAMES)}\n")
    with ThreadPoolExecutor(max_workers=1) as thread:
        thread.submit(_leave, hosts).result()
        yield thread


def _leave(hosts: Path) -> None:
    if ctypes.CDLL(None, use_errno=True).unshare(_NEW_MOUNTS_AND_NETWORK):
        raise OSError(ctypes.get_errno(), "no network of one's own")
    for words in (
        "mount --make-rprivate /",
        "mount -t tmpfs none /run",
        f"mount --bind {hosts} /etc/hosts",
        "ip link set lo up",
        *(f"ip address add {address}/32 dev lo" for address in _ADDRESSES),
    ):
        subprocess.run(words.split(), check=True, capture_output=True)


class Walk:
    """One page's walk, in the current folder."""

    def __init__(self, forker: CommandForker, variables: Mapping[str, str], log: Path) -> None:
        self._forker = forker
        self._environment = {**environment(), **variables}
        self._log = log.open("a")
        self._umask: int | None = None
        self._prometheus: subprocess.Popen[bytes] | None = None
        self._servers: dict[tuple[str, str], tuple[ForkedProcess, IO[str]]] = {}
        self._notebook: tuple[ForkedProcess, IO[str], IO[str]] | None = None

    def run(self, block: Block) -> None:
        """Runs a block; one of data that begins with a file's name becomes that file."""
        if block.language == "python":
            self.run_python(str(block), block.text)
        elif block.language in ("console", "sh"):
            for command in commands_of(block):
                self._run_command(block, command)
        elif named := _FILE.match(block.text):
            Path(named[1]).write_text(block.text)

    def run_python(self, name: str, code: str) -> None:
        """Runs a block of Python, with the names of those before it."""
        if self._notebook is None:
            self._notebook = self._start_notebook()
        process, written, read = self._notebook
        written.write(json.dumps([name, code]) + "\n")
        written.flush()
        for line in _lines(process, read):
            if line.startswith("\0"):
                return
        raise AssertionError(f"{name} failed: {self._logged()}")

    def close(self) -> None:
        """Ends what still runs."""
        if self._umask is not None:
            os.umask(self._umask)
        if self._prometheus is not None:
            self._prometheus.terminate()
            self._prometheus.wait(_SECONDS)
        for server, out in self._servers.values():
            _end(server, signal.SIGTERM)
            out.close()
        if self._notebook is not None:
            process, written, read = self._notebook
            written.close()
            _end(process, signal.SIGTERM)
            read.close()
        self._log.close()

    def _run_command(self, block: Block, command: Command) -> None:
        words = shlex.split(command.text.replace("\\\n", " "), comments=True)
        variables = {}
        while words and re.match(r"[A-Z_]+=", words[0]):
            name, _, value = words.pop(0).partition("=")
            variables[name] = value
        if words[0] == "export":
            self._environment |= dict(word.split("=", 1) for word in words[1:])
        elif words[0] == "umask":
            self._umask = os.umask(int(words[1], 8))
        elif words[:2] in (["sharded-infer", "serve"], ["sharded-infer", "serve-shards"]):
            if "--print-config" in words:
                self._finish(block, command, words[1:], variables)
            else:
                self._serve(block, words[1:], variables)
        elif words[0] == "prometheus":
            self._start_prometheus(words)
        elif words[0] == "sharded-infer":
            self._finish(block, command, words[1:], variables)
        else:
            done = subprocess.run(
                ["/bin/bash", "-c", command.text],
                env=self._environment, capture_output=True, text=True, check=False,
                timeout=_SECONDS,
            )  # fmt: skip
            assert done.returncode == 0, f"{block}: {command.text}: {done.stdout}{done.stderr}"

    def _finish(
        self, block: Block, command: Command, words: list[str], variables: Mapping[str, str]
    ) -> None:
        """Runs a command of ours to its end, or until it says something if it has none."""
        process, out = self._start(words, variables, to_log=False)
        with out:
            if _lasts(words):
                printed = [next(_lines(process, out), "")]
                _end(process, signal.SIGINT)
                assert printed[0], f"{block}: {command.text} says nothing"
            else:
                printed = [*_lines(process, out)]
                code = process.wait(_SECONDS)
                assert code == 0, f"{block}: {command.text}: {code}: {''.join(printed)}"
        missing = _missing(command.output, "".join(printed).splitlines())
        assert missing is None, f"{block}: {command.text}: no {missing!r} in {''.join(printed)}"

    def _serve(self, block: Block, words: list[str], variables: Mapping[str, str]) -> None:
        """Starts a server and waits until it is ready; one at its address ends before."""
        options = dict(pairwise(words))
        host, port = options.get("--host", "localhost"), options.get("--port", "8001")
        for other in [*self._servers]:
            if other[1] == port and (host == other[0] or "0.0.0.0" in (host, other[0])):  # noqa: S104 - no socket
                server, out = self._servers.pop(other)
                _end(server, signal.SIGTERM)
                out.close()
        server, out = self._start([*words, "--json"], variables, to_log=True)
        self._servers[host, port] = server, out
        for line in _lines(server, out):
            if line.startswith("{"):
                return
        raise AssertionError(f"{block}: {shlex.join(words)} is not ready: {self._logged()}")

    def _start_prometheus(self, words: list[str]) -> None:
        self._prometheus = subprocess.Popen(words, stdout=self._log, stderr=self._log)
        # Whoever asks it next finds it.
        address = words[words.index("--web.listen-address") + 1]
        until(lambda: is_ready(f"http://{address}"), "Prometheus is ready")

    def _start(
        self, words: list[str], variables: Mapping[str, str], *, to_log: bool
    ) -> tuple[ForkedProcess, IO[str]]:
        read, write = os.pipe()
        out = os.fdopen(read)
        try:
            streams = (0, write, self._log.fileno() if to_log else write)
            process = self._forker.start(words, {**self._environment, **variables}, streams, out)
        finally:
            os.close(write)
        return process, out

    def _start_notebook(self) -> tuple[ForkedProcess, IO[str], IO[str]]:
        code_read, code_write = os.pipe()
        out_read, out_write = os.pipe()
        streams = (code_read, out_write, self._log.fileno())
        try:
            process = self._forker.start([], self._environment, streams, program=_NOTEBOOK)
        finally:
            os.close(code_read)
            os.close(out_write)
        return process, os.fdopen(code_write, "w"), os.fdopen(out_read)

    def _logged(self) -> str:
        return Path(self._log.name).read_text()[-4000:]


def _lasts(words: list[str]) -> bool:
    """Whether a command goes on until it is told to end."""
    return words[0] == "publish" and "--follow" in words


def _lines(process: ForkedProcess, out: IO[str]) -> Iterator[str]:
    """What a process prints, to its end; one that goes on for too long is ended."""
    watchdog = threading.Timer(_SECONDS, process.kill)
    watchdog.start()
    try:
        # `yield from` would close the pipe with the iterator.
        for line in out:  # noqa: UP028
            yield line
    finally:
        watchdog.cancel()


def _end(process: ForkedProcess, number: int) -> None:
    process.send_signal(number)
    try:
        process.wait(30.0)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(30.0)


def _missing(expected: Iterable[str], printed: Iterable[str]) -> str | None:
    """The first line that a page shows and a command did not print, but for its numbers."""
    rest = iter([_without_numbers(line) for line in printed])
    for line in expected:
        if _without_numbers(line) not in rest:
            return line
    return None


def _without_numbers(line: str) -> str:
    return _COUNTED.sub(r"\1", _NUMBER.sub("#", line.strip()))
