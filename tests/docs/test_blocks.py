"""Every code block of the documentation runs, or says why it does not."""

import json
import os
import shutil
import subprocess
import tomllib
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.docs.blocks import PAGES, ROOT, RUN, Block, blocks_of
from tests.docs.folder import prepare
from tests.docs.walk import Walk, own_network
from tests.support.forked_command import CommandForker, environment
from tests.support.s3_server import S3Server, s3_server

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
    "several machines": 2,
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
            commands = [
                line for line in block.text.splitlines() if line.startswith(("$ ", "sharded"))
            ]
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
    """A browser without a display."""
    folder = tmp_path_factory.mktemp("shims")
    (folder / "xdg-open").write_text(
        '#!/bin/sh\nexec curl --silent --fail --output /dev/null "$1"\n'
    )
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
            for block in to_run(page):
                walk.run(block)

    place.thread.submit(walk).result()


@contextmanager
def empty_bucket(s3: S3Server) -> Iterator[None]:
    """The bucket that the pages name."""
    client = s3.client()
    client.create_bucket(Bucket=BUCKET)
    yield
    listed = client.list_objects_v2(Bucket=BUCKET).get("Contents", [])
    for entry in listed:
        client.delete_object(Bucket=BUCKET, Key=entry["Key"])
    client.delete_bucket(Bucket=BUCKET)


def to_run(page: str) -> Iterator[Block]:
    """The blocks of a page, each after what it supposes."""
    before = supposed(page)
    for block in blocks_of(page):
        if not block.reason:
            for line in block.text.splitlines():
                yield from before.get(line, ())
            yield block
