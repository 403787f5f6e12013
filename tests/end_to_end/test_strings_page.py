"""The example of the page about raw ids: published, served and asked as it says."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest
import torch
import tritonclient.grpc
import tritonclient.http

from tests.support.servers import RunningServer, command, environment, running_server

PAGE = (Path(__file__).parents[2] / "docs" / "raw-ids.md").read_text().split("## Example")[1]


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("page")


@pytest.fixture(scope="module")
def wanted(folder: Path) -> list[float]:
    """Scores of the page's own modules for the strings that it sends."""
    made: dict[str, Any] = {}
    with pytest.MonkeyPatch.context() as patch, torch.random.fork_rng(devices=[]):
        patch.chdir(folder)
        torch.default_generator.manual_seed(1)
        exec(compile(blocks("python")[0], "docs/raw-ids.md", "exec"), made)  # noqa: S102 - our own page
    rows = torch.tensor([[made["CITIES"].index("Köln")], [0]])
    with torch.no_grad():
        scores: list[float] = made["tower"](
            torch.tensor([[0.5, 1.0]] * 2), made["city"](rows)
        ).tolist()
    # Far more than what rounding of rows does.
    assert abs(scores[0] - scores[1]) > 1e-2
    return scores


@pytest.fixture(scope="module")
def server(wanted: list[float], folder: Path) -> Iterator[RunningServer]:
    (folder / "model.toml").write_text(blocks("toml")[0])
    files = ("--spec", folder / "model.toml", "--weights", folder / "city.pt")
    words = command("publish", *files, "--repository", folder / "models")
    subprocess.run(words, env=environment(), check=True, timeout=240)
    with running_server(folder / "models", folder / "log") as running:
        yield running


def http_address(server: RunningServer) -> str:
    return server.metrics_url.removeprefix("http://").removesuffix("/metrics")


def test_curl_sends_strings(server: RunningServer, wanted: list[float]) -> None:
    [called] = [block for block in blocks("console") if "curl" in block]
    address, body = re.findall(r"curl localhost:8002(\S+) -d '(.*)'", called, re.DOTALL)[0]
    url = f"http://{http_address(server)}{address}"
    with urlopen(url, body.encode(), timeout=60) as answer:
        [output] = json.load(answer)["outputs"]
    np.testing.assert_allclose(output["data"], wanted, atol=1e-3)


@pytest.mark.parametrize("triton", [tritonclient.grpc, tritonclient.http])
def test_tritons_clients_send_strings(
    server: RunningServer,
    wanted: list[float],
    triton: ModuleType,
    capsys: pytest.CaptureFixture[str],
) -> None:
    is_grpc = triton is tritonclient.grpc
    code = blocks("python")[1].replace("tritonclient.grpc", triton.__name__)
    code = code.replace("localhost:8001", server.grpc_url if is_grpc else http_address(server))
    asked: dict[str, Any] = {}
    exec(compile(code, "docs/raw-ids.md", "exec"), asked)  # noqa: S102 - our own page
    asked["client"].close()
    printed = capsys.readouterr().out.strip("[]\n").split()
    np.testing.assert_allclose([float(score) for score in printed], wanted, atol=1e-3)
