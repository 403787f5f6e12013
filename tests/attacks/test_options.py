"""Every option of every command, given what it cannot be: one line says so, and the code is not 0.

New options are found by walking the commands.
"""

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
    """An option or argument of a command.

    Attributes:
        words: the command's.
        name: its first flag; an argument's name.
        is_argument: whether it is one.
        kinds: the Python types of its values.
        required: flags of options that the command must have, and how many values each takes.
    """

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
    """Every option of the tree."""
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


def test_every_number_out_of_its_bounds_is_refused_by_its_options_name(
    sharded_infer: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
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
        for value in ("", "9" * 400, "a\nb", "../../x", "-", "\x1b[2J", "s3://", "x://y"):
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


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("--slots", "999999999999"), ("--slots", "1025"),
        ("--max-message-mib", "2048"), ("--drain-seconds", "inf"), ("--grace-seconds", "86401"),
        ("--workers", "0"), ("--poll-seconds", "-1"),
    ],
)  # fmt: skip
def test_settings_of_a_server_have_bounds_from_every_source(
    sharded_infer: Command,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    setting: str,
    value: str,
) -> None:
    name = setting.removeprefix("--").replace("-", "_")
    file = tmp_path / "serve.toml"
    file.write_text(f"{name} = {value}\n")
    refusals = [
        sharded_infer("serve", "-r", tmp_path, "--print-config", f"{setting}={value}"),
        sharded_infer("serve", "-r", tmp_path, "--print-config", "--config", file),
    ]
    monkeypatch.setenv(f"SHARDED_INFER_{name.upper()}", value)
    refusals.append(sharded_infer("serve", "-r", tmp_path, "--print-config"))
    for done in refusals:
        assert done.code in (1, 2) and (setting in done.err or name in done.err), done


def _wrong_files(folder: Path) -> dict[str, Path]:
    """What a file that is read may be instead."""
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


def _read_lines(files: Files) -> dict[str, tuple[str, ...]]:
    """For what is read: a command line that would do, but for the file behind it.

    The repository `files.folder` is expected to have `small` version 1.
    """
    spec, weights, place = ("--spec", str(files.spec)), ("--weights", str(files.weights)), "-r"
    plan, repository = ("plan", *spec), str(files.repository)
    published = str(files.folder)
    quantize = ("quantize", *spec, *weights, "--dry-run")
    predict = ("predict", str(files.folder / "samples.json"), "--address", "127.0.0.1:9")
    watch = ("repo", "watch", "127.0.0.1:9")
    promote = ("repo", "promote", published, "small", "--server", "http://127.0.0.1:9")
    publish = ("publish", *spec, *weights, place, repository)
    change = ("publish", place, published, "--model", "small")
    on_ray = ("cluster", "publish", place, repository, "--parts", "2")
    shards = ("serve-shards", place, repository, "--host-number", "0")
    return {
        "plan --spec": ("plan", "--spec"),
        "plan --topology": (*plan, "--topology"),
        "plan --samples": (*plan, "--samples"),
        "plan --from-plan": (*plan, "--from-plan"),
        "quantize --spec": ("quantize", *weights, "--dry-run", "--spec"),
        "quantize --weights": ("quantize", *spec, "--dry-run", "--weights"),
        "quantize --samples": (*quantize, "--samples"),
        "quantize --calibration": (*quantize, "--calibration"),
        "publish --spec": ("publish", *weights, place, repository, "--spec"),
        "publish --weights": ("publish", *spec, place, repository, "--weights"),
        "publish --topology": (*publish, "--topology"),
        "publish --samples": (*publish, "--samples"),
        "publish --calibration": (*publish, "--calibration"),
        "publish --sign-key": (*publish, "--sign-key"),
        "publish --changed": (*change, "--changed"),
        "publish --tower": (*change, "--base", "1", "--tower"),
        "publish --follow": (*change, "--nice", 0, "--follow"),
        "cluster publish --spec": (*on_ray, *weights, "--spec"),
        "cluster publish --weights": (*on_ray, *spec, "--weights"),
        "cluster publish --topology": (*on_ray, *spec, *weights, "--topology"),
        "cluster publish --samples": (*on_ray, *spec, *weights, "--samples"),
        "cluster publish --calibration": (*on_ray, *spec, *weights, "--calibration"),
        "cluster publish --sign-key": (*on_ray, *spec, *weights, "--sign-key"),
        "calibrate --shard-hosts": ("calibrate", "--shard-hosts"),
        "plan --compare": (*plan, "--compare", str(files.folder / "plan.json")),
        "spec --from": ("spec", "--from"),
        "predict samples": ("predict", place, published, "--model", "small"),
        "predict --token-file": (*predict, "--token-file"),
        "predict --tls-ca": (*predict, "--tls-ca"),
        "predict --tls-certificate": (*predict, "--tls-key", str(files.spec), "--tls-certificate"),
        "predict --tls-key": (*predict, "--tls-certificate", str(files.spec), "--tls-key"),
        "repo watch --token-file": (*watch, "--token-file"),
        "repo watch --tls-ca": (*watch, "--tls-ca"),
        "repo watch --tls-certificate": (*watch, "--tls-key", str(files.spec), "--tls-certificate"),
        "repo watch --tls-key": (*watch, "--tls-certificate", str(files.spec), "--tls-key"),
        "inspect --trusted-key": ("inspect", place, published, "--trusted-key"),
        "verify --trusted-key": ("verify", place, published, "--trusted-key"),
        "repo verify --trusted-key": ("repo", "verify", published, "--trusted-key"),
        "repo sign --sign-key": ("repo", "sign", published, "small@1", "--sign-key"),
        "repo sign --trusted-key": (
            *("repo", "sign", published, "small@1", "--sign-key", str(files.spec)),
            "--trusted-key",
        ),
        "repo copy --sign-key": (
            *("repo", "copy", published, "small@1", repository, "--sign-key"),
        ),
        "repo compact --sign-key": ("repo", "compact", published, "small", "--sign-key"),
        "repo promote --token-file": (*promote, "--token-file"),
        "repo promote --tls-ca": (*promote, "--tls-ca"),
        "repo promote --tls-certificate": (
            *(*promote, "--tls-key", str(files.spec)),
            "--tls-certificate",
        ),
        "repo promote --tls-key": (*promote, "--tls-certificate", str(files.spec), "--tls-key"),
        "bench serve --token-file": ("bench", "serve", "--address", "127.0.0.1:9", "--token-file"),
        "demo --data": ("demo", "--data"),
        "demo --ratings": ("demo", "--model", "din", "--ratings"),
        "serve --config": ("serve", place, repository, "--print-config", "--config"),
        "serve-shards --config": (*shards, "--print-config", "--config"),
        **{f"cluster {name} file": ("cluster", name) for name in ("up", "status", "roll", "down")},
    }


# Files and folders that are written.
_WRITTEN = {
    *(f"bench {name} --json" for name in ("lookup", "engine", "serve")),
    "bench serve --chart",
    "calibrate --out", "calibrate --disk",
    "demo --json", "demo --repository", "doctor --folder", "inspect --html",
    "plan --html", "plan --json", "quantize --html", "quantize --out", "spec --out",
}  # fmt: skip


def test_every_option_that_names_a_file_is_tried(files: Files) -> None:
    named = {str(option) for option in options() if Path in option.kinds}
    assert named <= _read_lines(files).keys() | _WRITTEN


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
    for what, line in _read_lines(files).items():
        if what == "publish --follow" and kind in ("folder", "empty"):
            continue  # folders, which it follows
        try:
            with _in_time():
                done = sharded_infer(*line, path)
        except BaseException as error:
            found.append((what, repr(error)[:200]))
            continue
        # What is wrong inside a file is told by its line.
        named = kind not in ("missing", "FIFO", "endless", "200 GB") or str(path) in done.err
        if done.code not in (1, 2) or "Traceback" in done.err or not named:
            found.append((what, str(done)[:200]))
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


@pytest.mark.parametrize("option", ["--config", "--tokens-file", "--tls-certificate"])
@pytest.mark.parametrize("kind", ["FIFO", "endless", "folder", "junk"])
def test_a_server_refuses_files_that_are_none(
    files: Files, tmp_path: Path, option: str, kind: str
) -> None:
    path = _wrong_files(tmp_path)[kind]
    more = ("--tls-key", path) if option == "--tls-certificate" else ()
    ports = ("--port", 0, "--http-port", 0)
    done = run("serve", "-r", files.repository, *ports, option, path, *more)
    assert done.returncode == 1 and "Traceback" not in done.stderr, done
    assert str(path) in done.stderr


@pytest.mark.parametrize(
    "line",
    ["rows = true", "rows = 50.0", 'rows = "50"', "dim = true", "features = true", "rows = 1e400"],
)
def test_a_specs_values_are_of_their_types(
    files: Files, tmp_path: Path, sharded_infer: Command, line: str
) -> None:
    key = line.partition(" ")[0]
    text = "".join(
        f"{line}\n" if part.startswith(f"{key} ") else f"{part}\n"
        for part in files.spec.read_text().splitlines()
    )
    if line not in text:
        text = text.replace("[[tables]]\n", f"[[tables]]\n{line}\n", 1)
    (tmp_path / "model.toml").write_text(text)
    sharded_infer("plan", "--spec", tmp_path / "model.toml").refused(f": {key}: ")


def test_a_topologys_and_a_plans_values_are_of_their_types(
    files: Files, tmp_path: Path, sharded_infer: Command
) -> None:
    topology, plan = tmp_path / "topology.toml", tmp_path / "plan.json"
    for line in ("host = true", 'memory_bandwidth = "1e9"', "granule_bytes = 64.0"):
        topology.write_text(f"[[devices]]\n{line}\n")
        done = sharded_infer("plan", "--spec", files.spec, "--topology", topology)
        done.refused(line.partition(" ")[0])
    assert sharded_infer("plan", "--spec", files.spec, "--json", plan).code == 0
    plan.write_text(plan.read_text().replace('"host": 0', '"host": false'))
    sharded_infer("plan", "--spec", files.spec, "--from-plan", plan).refused("host")


def test_a_checkpoint_behind_a_link_is_read(
    files: Files, tmp_path: Path, sharded_infer: Command
) -> None:
    link = tmp_path / "weights.safetensors"
    save_file({"ads": np.ones((50, 8), np.float32)}, tmp_path / "real.safetensors")
    link.symlink_to(tmp_path / "real.safetensors")
    assert sharded_infer("spec", "--from", link).code == 0
