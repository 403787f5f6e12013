"""The manifest for Kubernetes: its options, ports, paths and times are the server's."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from sharded_infer.byte_sizes import parse_size
from sharded_infer.files.cache_folder import CACHE_VARIABLE
from sharded_infer.repositories.storage.version_cache import CACHE_SIZE_VARIABLE
from tests.docker.dockerfile import DOCKER, ROOT, values

PAGE = ROOT / "docs" / "kubernetes.md"
MANIFEST = DOCKER / "kubernetes.yaml"
# Beyond the draining time: workers that hang, then the process that answers HTTP.
_PATIENCE_SECONDS = 10


@pytest.fixture(scope="module")
def objects() -> dict[str, Any]:
    return {one["kind"]: one for one in yaml.safe_load_all(MANIFEST.read_text())}


@pytest.fixture(scope="module")
def pod(objects: dict[str, Any]) -> Any:
    return objects["Deployment"]["spec"]["template"]["spec"]


@pytest.fixture(scope="module")
def container(pod: dict[str, Any]) -> Any:
    (container,) = pod["containers"]
    return container


@pytest.fixture(scope="module")
def settings(container: dict[str, Any]) -> dict[str, Any]:
    """What the server makes of the manifest's options, by its own reader."""
    done = subprocess.run(
        [sys.executable, "-m", "serving.cli", *container["args"], "--print-config", "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {name: said["value"] for name, said in json.loads(done.stdout).items()}


def test_the_server_takes_the_options(settings: dict[str, Any]) -> None:
    assert settings["follow"] == "labels:stable"
    assert settings["host"] == "0.0.0.0"  # noqa: S104 - of a pod


def test_ports_are_those_that_the_server_listens_on(
    objects: dict[str, Any], container: dict[str, Any], settings: dict[str, Any]
) -> None:
    named = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert named == {"grpc": settings["port"], "http": settings["http_port"]}
    service = objects["Service"]["spec"]["ports"]
    assert {port["targetPort"]: port["port"] for port in service} == named


def test_the_service_finds_the_pods(objects: dict[str, Any]) -> None:
    deployment = objects["Deployment"]["spec"]
    labels = deployment["template"]["metadata"]["labels"]
    assert objects["Service"]["spec"]["selector"].items() <= labels.items()
    assert deployment["selector"]["matchLabels"].items() <= labels.items()


def test_probes_ask_paths_that_there_are_without_a_token(container: dict[str, Any]) -> None:
    asked = {kind: container[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness")}
    assert {probe["path"] for probe in asked.values()} == {"/live"}
    assert container["readinessProbe"]["httpGet"]["path"] == "/ready"
    description = json.loads((ROOT / "serving/http_api/openapi.json").read_text())
    assert {"/live", "/ready"} <= set(description["paths"])
    every = [*asked.values(), container["readinessProbe"]["httpGet"]]
    assert {probe["port"] for probe in every} == {"http"}


def test_a_pod_is_given_the_time_to_drain(pod: dict[str, Any], settings: dict[str, Any]) -> None:
    needed = float(settings["grace_seconds"]) + float(settings["drain_seconds"])
    assert pod["terminationGracePeriodSeconds"] >= needed + _PATIENCE_SECONDS


def test_no_more_batches_run_than_the_pod_has_processors(
    container: dict[str, Any], settings: dict[str, Any]
) -> None:
    cores = int(container["resources"]["limits"]["cpu"])
    assert settings["workers"] * settings["slots"] == cores


def test_what_the_server_writes_and_reads_is_mounted(
    pod: dict[str, Any], container: dict[str, Any], settings: dict[str, Any]
) -> None:
    mounted = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert set(mounted.values()) == set(volumes) and "/tmp" in mounted  # noqa: S108 - of a pod
    variables = {one["name"]: one["value"] for one in container["env"]}
    cache = volumes[mounted[variables[CACHE_VARIABLE]]]["emptyDir"]["sizeLimit"]
    assert parse_size(variables[CACHE_SIZE_VARIABLE], "cache") < parse_size(f"{cache}B", "volume")
    assert mounted[str(Path(settings["tokens_file"]).parent)] == "tokens"


def test_it_runs_as_the_image_does(pod: dict[str, Any], container: dict[str, Any]) -> None:
    user, _, group = values("runtime", "USER")[-1].partition(":")
    security = pod["securityContext"]
    assert (security["runAsUser"], security["runAsGroup"]) == (int(user), int(group))
    assert container["securityContext"]["readOnlyRootFilesystem"]
    assert not pod["enableServiceLinks"]


def test_the_page_says_the_times_of_the_manifest(
    pod: dict[str, Any], settings: dict[str, Any]
) -> None:
    page = " ".join(PAGE.read_text().split())
    assert f"grace of {float(settings['grace_seconds']):g}" in page
    beyond = pod["terminationGracePeriodSeconds"] - sum(
        float(settings[name]) for name in ("grace_seconds", "drain_seconds")
    )
    assert f"is the sum and {beyond:g}" in page
