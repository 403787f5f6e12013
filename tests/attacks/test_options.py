"""Every option of every command, given what it cannot be: refused in one line, by name."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any, get_args

import numpy as np
import pytest
from safetensors.numpy import save_file
from typer.main import get_command

import serving.cli
from tests.serving.test_cli import Files, files
from tests.support.servers import Command, run

assert files

NUMBERS = ("", "x", "nan", "-inf", "1e400", "-" + "9" * 400, "9" * 5000)
_SECONDS = 20.0  # of a command that should end at once; ended, it fails the test


@dataclass(frozen=True)
class Option:
    """An option or argument of a command, its types, and flags that the command must have."""

    words: tuple[str, ...]
    name: str
    is_argument: bool
    kinds: frozenset[Any]
    required: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        return " ".join((*self.words, self.name))


def _kinds(annotation: Any) -> set[Any]:
    parts = get_args(annotation)
    return {kind for part in parts for kind in _kinds(part)} if parts else {annotation}


@cache
def options() -> tuple[Option, ...]:
    root: Any = get_command(serving.cli.app)
    found: list[Option] = []

    def walk(command: Any, words: tuple[str, ...], context: Any) -> None:
        if hasattr(command, "list_commands"):
            for name in command.list_commands(context):
                below = command.get_command(context, name)
                inner = type(context)(below, info_name=name, parent=context)
                walk(below, (*words, name), inner)
            return
        needed = tuple(
            (p.opts[0] if p.param_type_name == "option" else "", max(p.nargs, 1))
            for p in command.params
            if p.required
        )
        for parameter in command.params:
            descriptor = getattr(parameter, "type_descriptor", None)
            if descriptor is None or "--help" in parameter.opts:
                continue
            kinds = frozenset(_kinds(descriptor.annotation))
            is_argument = parameter.param_type_name == "argument"
            found.append(Option(words, parameter.opts[0], is_argument, kinds, needed))

    walk(root, (), root.make_context("sharded-infer", ["doctor"], resilient_parsing=True))
    return tuple(found)


def _line(option: Option, value: str) -> list[str]:
    """A command line with one option wrong; what it needs besides names nothing that exists."""
    words = list(option.words)
    for flag, count in option.required:
        if flag != option.name:
            words += [*([flag] if flag else []), *["1"] * count]
    return [*words, f"{option.name}={value}"]


class _TooLongError(BaseException):
    """A command waits for something."""


@contextmanager
def _in_time() -> Iterator[None]:
    def ring(number: int, frame: FrameType | None) -> None:
        raise _TooLongError(f"not within {_SECONDS} s")

    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, _SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_the_walk_finds_the_options() -> None:
    found = {str(option) for option in options()}
    assert {"plan --batch", "serve --slots", "doctor --port", "bench serve --chart"} <= found
    assert len(found) > 150


def test_every_number_has_bounds(sharded_infer: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERMINAL_WIDTH", "10000")
    numbers = [o for o in options() if o.kinds & {int, float} and not o.is_argument]
    assert len(numbers) > 60
    wrong = []
    for option in numbers:
        for value in NUMBERS:
            with _in_time():
                done = sharded_infer(*_line(option, value))
            if done.code not in (1, 2) or option.name not in done.err:
                wrong.append((str(option), value[:20], done.code, done.err[-200:]))
    assert wrong == []


def test_no_text_ends_a_command_with_a_traceback(
    sharded_infer: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    texts = [
        option
        for option in options()
        if str in option.kinds and option.words[0] not in ("bench", "demo")
        if not option.is_argument
    ]
    assert len(texts) > 20
    for option in texts:
        for value in ("", "9" * 400, "a\n\x1b[2J", "../../x", "s3://"):
            line = _line(option, value)
            # Servers say what they would do.
            more = {
                "serve": ("--print-config", "-r", "absent"),
                "serve-shards": ("--print-config", "-r", "absent", "--host-number", 0),
            }.get(" ".join(option.words), ())
            with _in_time():
                done = sharded_infer(*line, *more)
            assert "Traceback" not in done.err, (str(option), value)


def test_a_name_that_is_no_utf_8_is_no_traceback() -> None:
    for words in (("repo", "list"), ("plan", "--spec"), ("inspect", "-r")):
        done = run(*words, "\udcff\udcfe")
        assert done.returncode == 1 and "Traceback" not in done.stderr, done


@pytest.mark.parametrize("said", ["--slots=1025", "--workers=0", "--poll-seconds=-1"])
def test_settings_of_a_server_have_bounds_from_every_source(
    sharded_infer: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str
) -> None:
    setting, _, value = said.partition("=")
    name = setting.removeprefix("--").replace("-", "_")
    (file := tmp_path / "serve.toml").write_text(f"{name} = {value}\n")
    words = ("serve", "-r", tmp_path, "--print-config")
    refusals = [sharded_infer(*words, *more) for more in ((said,), ("--config", file))]
    monkeypatch.setenv(f"SHARDED_INFER_{name.upper()}", value)
    for done in (*refusals, sharded_infer(*words)):
        assert done.code in (1, 2) and (setting in done.err or name in done.err), done


def _wrong_files(folder: Path) -> dict[str, Path]:
    wrong = {
        "folder": folder / "folder", "missing": folder / "missing", "FIFO": folder / "fifo",
        "endless": Path("/dev/zero"), "empty": Path(), "junk": folder / "junk",
        "other text": folder / "latin", "deep JSON": folder / "deep.json",
        "deep TOML": folder / "deep.toml", "200 GB": folder / "large",
    }  # fmt: skip
    wrong["folder"].mkdir()
    os.mkfifo(wrong["FIFO"])
    wrong["junk"].write_bytes(np.random.default_rng(0).bytes(4096))
    wrong["other text"].write_bytes("größe = 1\n".encode("latin-1"))
    wrong["deep JSON"].write_text("[" * 100_000)
    wrong["deep TOML"].write_text("a = " + "[" * 100_000)
    wrong["200 GB"].touch()
    os.truncate(wrong["200 GB"], 200 * 2**30)
    return wrong


# Files and folders that are written.
_WRITTEN = {
    *(f"bench {name} --json" for name in ("lookup", "engine", "serve")),
    "bench serve --chart",
    "calibrate --out", "calibrate --disk",
    "demo --json", "demo --repository", "doctor --folder", "inspect --html",
    "plan --html", "plan --json", "quantize --html", "quantize --out", "record show --html",
    "spec --out",
}  # fmt: skip


# A name or a file, or a folder or a URL.
_PLACES = {
    "plan --topology", "publish --topology", "cluster publish --topology", "bench serve --replay",
    "record show record", "record sample record", "record compare record", "record prune record",
}  # fmt: skip


def _needs(files: Files) -> dict[str, dict[str, str]]:
    """By command: flags, or "" and numbers for arguments, with values that would do."""
    published, repository, nobody = str(files.folder), str(files.repository), "127.0.0.1:9"
    model = {"--spec": str(files.spec), "--weights": str(files.weights)}
    signed = {"1": published, "2": "small@1"}
    return {
        "bench serve": {"--address": nobody},
        "calibrate": {},
        "cluster publish": {**model, "-r": repository, "--parts": "2"},
        **{f"cluster {name}": {} for name in ("up", "status", "roll", "down")},
        "demo": {},
        "inspect": {"-r": published},
        "plan": {"--spec": str(files.spec)},
        "predict": {"1": str(files.folder / "samples.json"), "--address": nobody},
        "publish": {**model, "-r": repository},
        "quantize": model,
        "record compare": {"1": published, "--address": nobody},
        "record prune": {"--older-than": "1d"},
        "record sample": {},
        "record show": {"1": published},
        "repo compact": {"1": published, "2": "small"},
        "repo copy": {**signed, "3": repository},
        "repo promote": {"1": published, "2": "small", "--server": f"http://{nobody}"},
        "repo sign": {**signed, "--sign-key": str(files.spec)},
        "repo verify": {"1": published},
        "repo watch": {"1": nobody},
        "serve": {"-r": repository},
        "serve-shards": {"-r": repository, "--host-number": "0"},
        "spec": {},
        "verify": {"-r": published},
    }


def _line_of(option: Option, files: Files) -> list[str]:
    """A command line that would do, but for the file that follows."""
    command, key = " ".join(option.words), str(files.spec)
    needs = _needs(files)[command]
    if option.name in ("--changed", "--tower", "--follow") or str(option) == "predict samples":
        needs = {"-r": str(files.folder), "--model": "small"}
    if option.name == "--example":
        needs = {"-r": str(files.folder), "--module": "none:make"}
    beside = {
        "--tls-certificate": {"--tls-key": key},
        "--tls-key": {"--tls-certificate": key},
        "--tower": {"--base": "1"},
        "--ratings": {"--model": "din"},
        "--follow": {"--nice": "0"},
    }
    line = list(option.words)
    for flag, value in (needs | beside.get(option.name, {})).items():
        if flag != option.name:
            line += [value] if flag.isdigit() else [flag, value]
    if command in ("serve", "serve-shards"):
        line.append("--print-config")
    if command == "quantize":
        line.append("--dry-run")
    if not option.is_argument:
        line.append(option.name)
    return [*line, str(files.folder / "plan.json")] if option.name == "--compare" else line


@pytest.mark.usefixtures("version_copy")
@pytest.mark.parametrize(
    "kind",
    ["folder", "missing", "FIFO", "endless", "empty", "junk", "other text", "deep JSON",
     "deep TOML", "200 GB"],
)  # fmt: skip
def test_a_file_that_is_read_and_is_none_is_refused(
    files: Files, tmp_path: Path, sharded_infer: Command, kind: str
) -> None:
    found = []
    (files.folder / "samples.json").write_text("[{}]")
    plan = ("plan", "--spec", files.spec, "--topology", "cpu:1")
    assert sharded_infer(*plan, "--json", files.folder / "plan.json").code == 0
    path = _wrong_files(tmp_path)[kind]
    for option in options():
        is_read = Path in option.kinds or str(option) in _PLACES
        if not is_read or str(option) in _WRITTEN:
            continue
        if option.name == "--follow" and kind in ("folder", "empty"):
            continue  # folders, which it follows
        if str(option) == "record prune record" and kind in ("folder", "empty"):
            continue  # of which nothing is removed
        try:
            with _in_time():
                done = sharded_infer(*_line_of(option, files), path)
        except BaseException as error:
            found.append((str(option), repr(error)[:200]))
            continue
        # What is wrong inside a file is told by its line.
        named = kind not in ("missing", "FIFO", "endless", "200 GB") or str(path) in done.err
        if done.code not in (1, 2) or "Traceback" in done.err or not named:
            found.append((str(option), str(done)[:200]))
    assert found == []


@pytest.mark.parametrize("kind", ["folder", "no folder", "full", "FIFO"])
def test_a_file_that_cannot_be_written_is_refused(
    files: Files, version_copy: Path, tmp_path: Path, sharded_infer: Command, kind: str
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    paths = {"folder": tmp_path, "no folder": tmp_path / "no" / "file", "full": "/dev/full"}
    path = paths.get(kind, fifo)
    lines: list[tuple[object, ...]] = [
        ("plan", "--spec", files.spec, "--html", path),
        ("plan", "--spec", files.spec, "--json", path),
        ("inspect", "-r", version_copy.parent.parent, "--html", path),
        ("spec", "--from", files.weights, "--force", "--out", path),
    ]
    if kind in ("folder", "no folder"):
        lines += [("calibrate", "--out", path)]
        lines += [
            (*option.words, option.name, path)
            for option in options()
            if option.words[0] == "bench" and option.name in ("--json", "--chart")
        ]
    for line in lines:
        with _in_time():
            done = sharded_infer(*line)
        assert done.code == 1 and str(path) in done.err, (line, done)


def test_values_are_of_their_types(files: Files, tmp_path: Path, sharded_infer: Command) -> None:
    topology, plan = tmp_path / "topology.toml", tmp_path / "plan.json"
    for line in ("host = true", 'memory_bandwidth = "1e9"', "granule_bytes = 64.0"):
        topology.write_text(f"[[devices]]\n{line}\n")
        done = sharded_infer("plan", "--spec", files.spec, "--topology", topology)
        done.refused(line.partition(" ")[0])
    assert sharded_infer("plan", "--spec", files.spec, "--json", plan).code == 0
    plan.write_text(plan.read_text().replace('"host": 0', '"host": false'))
    sharded_infer("plan", "--spec", files.spec, "--from-plan", plan).refused("host")


def test_a_linked_checkpoint_is_read(files: Files, tmp_path: Path, sharded_infer: Command) -> None:
    link = tmp_path / "weights.safetensors"
    save_file({"ads": np.ones((50, 8), np.float32)}, tmp_path / "real.safetensors")
    link.symlink_to(tmp_path / "real.safetensors")
    assert sharded_infer("spec", "--from", link).code == 0
