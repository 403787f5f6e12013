"""Every code block of the documentation runs, or says why it does not."""

import csv
import ctypes
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import threading
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import IO

import numpy as np
import pytest
import torch
from torch import nn

from sharded_infer import Precision, Repository, export_tower, publish, write_program
from sharded_infer.importing.torchrec_model import from_torchrec
from tests.docker.prometheus_server import is_ready
from tests.support.forked_command import CommandForker, ForkedProcess, environment
from tests.support.s3_server import S3Server, s3_server
from tests.support.waiting import until

ROOT = Path(__file__).parents[2]
# cli.md is generated: its console blocks are synopses.
PAGES = (
    "README.md",
    *(f"docs/{page.name}" for page in sorted((ROOT / "docs").glob("*.md")) if page.stem != "cli"),
)
RUN = ("console", "python", "sh")
_FENCE = re.compile(r"( *)```(\w*)$")
_NOT_RUN = re.compile(r"<!-- not run: (.+) -->")


@dataclass(frozen=True, slots=True)
class Block:
    """A code block: its fence's line and language, and the reason why it is not run, if any."""

    page: str
    line: int
    language: str
    text: str
    reason: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


@dataclass(frozen=True, slots=True)
class Command:
    """A command of a block, and the lines that the page shows below it."""

    text: str
    output: tuple[str, ...]


def blocks_of(page: str) -> list[Block]:
    blocks = []
    lines = (ROOT / page).read_text().splitlines()
    above, number = "", 0
    while number < len(lines):
        line = lines[number]
        number += 1
        if opened := _FENCE.match(line):
            first, margin = number, len(opened[1])
            while lines[number].strip() != "```":
                number += 1
            text = "".join(f"{inside[margin:]}\n" for inside in lines[first:number])
            marked = _NOT_RUN.match(above.strip())
            blocks.append(Block(page, first, opened[2], text, marked[1] if marked else ""))
            number += 1
        above = line
    return blocks


def commands_of(block: Block) -> Iterator[Command]:
    """The commands of a console or shell block; of a console block with what they print."""
    prompt = "$ " if block.language == "console" else ""
    text = ""
    output: list[str] = []
    for line in block.text.splitlines():
        if _is_open(text):
            text += f"\n{line}"
        elif line.startswith(prompt):
            if text:
                yield Command(text, tuple(output))
            text, output = line.removeprefix(prompt), []
        else:
            output.append(line)
    yield Command(text, tuple(output))


def _is_open(text: str) -> bool:
    """Whether a command goes on in the next line."""
    if text.endswith("\\"):
        return True
    try:
        shlex.split(text, comments=True)
    except ValueError:
        return True
    return False


# Hosts that the pages name, all of them this machine.
_NAMES = ("localhost", "ranker")
_ADDRESSES = ("10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4")
_NEW_MOUNTS_AND_NETWORK = 0x00020000 | 0x40000000
_SECONDS = 120.0
# A page's blocks of Python share their names, as cells of a notebook do.
# Models with random weights may miss the gate: theirs are always the same.
_NOTEBOOK = """
import json, sys, torch
torch.manual_seed(0)
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
    """A thread in a network of its own, where `hosts` is /etc/hosts; for root."""
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
            # It goes on until it is told to end.
            if words[0] == "publish" and "--follow" in words:
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


ROWS, DIM, DENSE = 5000, 64, 13


def prepare(folder: Path) -> None:
    """What the pages' reader has: a ranker, its description, others, samples, and versions."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = _trained()
        torch.save(model.state_dict(), folder / "checkpoint.pt")
        torch.save(_trained().state_dict(), folder / "other.pt")
        spec, weights, tower = from_torchrec(model, "ranker")
        (folder / "model.toml").write_text(spec.to_toml())
        for _ in range(3):
            publish(spec, weights, tower, folder / "models")
        _, _, other = from_torchrec(_trained(), "ranker")
    program = export_tower(
        other,
        dense={"dense": DENSE},
        embedding_width=2 * DIM,
        outputs=spec.tower.outputs,
        precision=Precision.FP32,
    )
    write_program(program, folder / "tower.pt2")
    assert Repository(folder / "models").versions("ranker") == [1, 2, 3]
    samples = [block for block in blocks_of("docs/requests.md") if block.language == "json"]
    (folder / "samples.jsonl").write_text(samples[0].text)
    generator = np.random.default_rng(0)
    with (folder / "clicks.tsv").open("w", newline="") as file:
        written = csv.writer(file, delimiter="\t")
        written.writerow(["item", "user", "dense", "label"])
        for _ in range(50):
            ids = generator.integers(0, 100, 2)
            dense = " ".join(map(str, generator.random(DENSE)))
            written.writerow([*ids, dense, generator.integers(0, 2)])


def _trained() -> nn.Module:
    """A DLRM of TorchRec's with random weights."""
    dlrm = pytest.importorskip("torchrec.models.dlrm")
    configs = pytest.importorskip("torchrec.modules.embedding_configs")
    modules = pytest.importorskip("torchrec.modules.embedding_modules")
    tables = [
        configs.EmbeddingBagConfig(
            name=name, num_embeddings=ROWS, embedding_dim=DIM, feature_names=[name]
        )
        for name in ("item", "user")
    ]
    collection = modules.EmbeddingBagCollection(tables=tables)
    model: nn.Module = dlrm.DLRM(collection, DENSE, [32, DIM], [32, 1]).eval()
    return model


DATA = ("", "json", "toml", "yaml")
# Blocks that are not run, by what they need. A new one is counted here, so that somebody decides.
NOT_RUN = {
    "Docker": 4,
    "Kafka": 1,
    "Kubernetes": 2,
    "Ray": 2,
    "a GPU": 2,
    "a dump of another system": 1,
    "a model that TorchRec trained": 3,
    "installs packages": 2,
    "measures for minutes": 4,
    "recorded traffic": 8,
    "several machines": 3,
    "takes minutes": 3,
}
BUCKET = "bucket"
# Pages that begin in an empty folder.
TUTORIALS = (
    "docs/canary.md",
    "docs/latency.md",
    "docs/python.md",
    "docs/three-hosts.md",
    "docs/torchrec.md",
)
# What a page's reader has beside the folder of all: blocks that are run before the page's own.
SUPPOSED = Path(__file__).parent / "supposed"
WALKED = [
    page
    for page in PAGES
    if any(block.language in RUN and not block.reason for block in blocks_of(page))
]
ALL = [block for page in PAGES for block in blocks_of(page)]


def test_every_block_is_run_or_data() -> None:
    assert {block.language for block in ALL} == {*RUN, *DATA}
    assert len(WALKED) > 15
    for block in ALL:
        if block.language == "":
            lines = block.text.splitlines()
            commands = [line for line in lines if line.startswith(("$ ", "sharded"))]
            assert commands == [], f"{block} has commands and no language"


def test_what_is_not_run_is_counted_with_its_reason() -> None:
    assert Counter(block.reason for block in ALL if block.reason) == NOT_RUN
    assert [str(block) for block in ALL if block.reason and block.language not in RUN] == []


@pytest.mark.parametrize("block", [b for b in ALL if b.language in ("json", "toml")], ids=str)
def test_data_can_be_read(block: Block) -> None:
    if block.language == "toml":
        assert tomllib.loads(block.text)
    else:
        text = block.text
        while text:
            value, end = json.JSONDecoder().raw_decode(text)
            assert value
            text = text[end:].lstrip()


def supposed(page: str) -> dict[str, list[Block]]:
    """Blocks by the line that is in the block of the page that they come before."""
    path = SUPPOSED / Path(page).name
    if not path.exists():
        return {}
    name = path.relative_to(ROOT).as_posix()
    lines = path.read_text().splitlines()
    before: dict[str, list[Block]] = {}
    for block in blocks_of(name):
        # Comments of code begin with one mark, headings with two.
        above = [line for line in lines[: block.line] if line.startswith("## ")]
        before.setdefault(above[-1].removeprefix("## "), []).append(block)
    return before


def test_what_is_supposed_belongs_to_one_block_of_a_page() -> None:
    pages = {Path(page).name: page for page in WALKED}
    assert {path.name for path in SUPPOSED.iterdir()} <= pages.keys()
    for name in (path.name for path in SUPPOSED.iterdir()):
        run = [block for block in blocks_of(pages[name]) if not block.reason]
        for line in supposed(name):
            assert sum(line in block.text.splitlines() for block in run) == 1, f"{name}: {line}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reader")
    prepare(folder)
    return folder


@pytest.fixture(scope="module")
def shims(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shims")
    (folder / "xdg-open").write_text('#!/bin/sh\nexec curl -sfo /dev/null "$1"\n')
    (folder / "xdg-open").chmod(0o755)
    return folder


@dataclass(frozen=True, slots=True)
class Place:
    """Where pages are walked: a thread in a network of its own, and what runs there."""

    thread: ThreadPoolExecutor
    forker: CommandForker
    s3: S3Server


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    if os.geteuid():
        pytest.skip("a network of one's own is root's")
    with ExitStack() as stack:
        hosts = tmp_path_factory.mktemp("network") / "hosts"
        try:
            thread = stack.enter_context(own_network(hosts))
        except (OSError, subprocess.CalledProcessError) as error:
            pytest.skip(f"a network of one's own may not be made here: {error}")
        forker = thread.submit(CommandForker, environment()).result()
        stack.callback(forker.close)
        server = s3_server()
        s3 = thread.submit(server.__enter__).result()
        stack.callback(server.__exit__, None, None, None)
        yield Place(thread, forker, s3)


@pytest.mark.parametrize("page", WALKED)
def test_a_page_runs_from_its_first_block_to_its_last(
    page: str, place: Place, folder: Path, shims: Path, tmp_path: Path
) -> None:
    reader = tmp_path / "reader"
    if page in TUTORIALS:
        reader.mkdir()
    else:
        shutil.copytree(folder, reader)
    variables = {
        **place.s3.environment(),
        "EDITOR": "true",
        "PATH": f"{shims}:{os.environ['PATH']}",
        "SHARDED_INFER_CACHE": str(tmp_path / "cache"),
        "SHARDED_INFER_GRACE_SECONDS": "0",
    }

    def walk() -> None:
        os.chdir(reader)
        with (
            empty_bucket(place.s3),
            closing(Walk(place.forker, variables, tmp_path / "log")) as walk,
        ):
            # Each block comes after what it supposes.
            before = supposed(page)
            for block in (block for block in blocks_of(page) if not block.reason):
                for line in block.text.splitlines():
                    for other in before.get(line, ()):
                        walk.run(other)
                walk.run(block)

    place.thread.submit(walk).result()


@contextmanager
def empty_bucket(s3: S3Server) -> Iterator[None]:
    client = s3.client()
    client.create_bucket(Bucket=BUCKET)
    yield
    listed = client.list_objects_v2(Bucket=BUCKET).get("Contents", [])
    for entry in listed:
        client.delete_object(Bucket=BUCKET, Key=entry["Key"])
    client.delete_bucket(Bucket=BUCKET)
