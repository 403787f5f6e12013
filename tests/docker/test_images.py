"""The images and the compose file: pinned, small, and without root."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from tests.docker.dockerfile import DOCKER, ROOT, instructions, stages, values

REQUIREMENTS = DOCKER / "requirements.txt"
# By the Dockerfile itself, by device.
PAIR = {"torch", "fbgemm-gpu-cpu"}
FINAL_STAGES = ("cuda", "cpu")
COMPOSE: Any = yaml.safe_load((DOCKER / "compose.yaml").read_text())
SCRAPED: Any = yaml.safe_load((DOCKER / "prometheus" / "prometheus.yml").read_text())
_EXACT_TAG = re.compile(r"[\w./-]+:\d+\.\d+\.\d+[\w.-]*")


def test_every_base_is_one_exact_version_of_python() -> None:
    named = stages()
    (argument,) = [value for kind, value in named.pop("") if kind == "ARG"]
    assert _EXACT_TAG.fullmatch(argument.removeprefix("PYTHON="))
    bases = {steps[0][1].rsplit(" AS ", 1)[0] for steps in named.values()}
    assert bases - set(named) == {"${PYTHON}"}
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    assert Version(argument.split(":")[1].split("-")[0]) in SpecifierSet(declared)


def test_a_compiler_is_only_where_kernels_are_compiled_for_a_gpu() -> None:
    installed = {
        stage: [step for step in values(stage, "RUN") if "apt-get install" in step]
        for stage in FINAL_STAGES
    }
    assert installed["cpu"] == []
    (step,) = installed["cuda"]
    assert {"gcc", "libc6-dev"} <= set(step.split())
    # Whoever serves must be able to write what it compiles, and find it again.
    assert "install --directory --owner 10001 --group 10001 /var/cache/sharded-infer" in step
    (cache,) = [value for value in values("cuda", "ENV") if "TRITON_CACHE_DIR" in value]
    assert "TRITON_CACHE_DIR=/var/cache/sharded-infer/" in cache


@pytest.mark.parametrize("stage", FINAL_STAGES)
def test_images_run_without_root_are_probed_by_readiness_and_stop_at_a_signal(stage: str) -> None:
    user, _, group = values(stage, "USER")[-1].partition(":")
    assert int(user) > 0 and int(group) > 0
    assert not any("pip" in step for step in values(stage, "RUN"))
    (check,) = values(stage, "HEALTHCHECK")
    assert "/ready" in check and "curl" not in check and "wget" not in check
    # In exec form: a shell would not hand SIGTERM on.
    assert json.loads(values(stage, "ENTRYPOINT")[-1]) == ["sharded-infer"]
    assert json.loads(values(stage, "CMD")[-1])[0] == "serve"
    assert values(stage, "EXPOSE") == ["8001 8002"]


def test_torch_and_fbgemm_are_the_pair_that_the_project_needs() -> None:
    text = (DOCKER / "Dockerfile").read_text()
    makefile = re.search(r"torch==([\d.]+)", (ROOT / "Makefile").read_text())
    assert makefile is not None
    assert set(re.findall(r"torch==([\d.]+)", text)) == {makefile[1]}
    needed = _needed()
    for version in re.findall(r"fbgemm-gpu(?:-cpu)?==([\d.]+)", text):
        assert Version(version) in needed["fbgemm-gpu-cpu"].specifier


def test_every_dependency_is_pinned_to_a_version_that_is_allowed() -> None:
    lines = [line for line in REQUIREMENTS.read_text().splitlines() if not line.startswith("#")]
    pins = dict(line.split("==") for line in lines)
    for name, requirement in _needed().items():
        if name not in PAIR:
            assert Version(pins[name]) in requirement.specifier, name
    assert PAIR & set(pins) == set()


def _needed() -> dict[str, Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *extras["s3"]]
    return {canonicalize_name((one := Requirement(line)).name): one for line in lines}


def test_what_is_copied_is_sent_to_the_builder() -> None:
    ignore = (ROOT / ".dockerignore").read_text().splitlines()
    sent = {line.removeprefix("!") for line in ignore if line.startswith("!")}
    copied = {
        source
        for one in instructions()
        if one["instruction"] == "COPY" and "--from=" not in one["value"]
        for source in one["value"].split()[:-1]
    }
    assert copied == sent
    # What `make release` makes is not there yet.
    assert [name for name in copied if not (ROOT / name).exists()] == ["dist/*.whl"]


def test_compose_pins_its_images_and_mounts_and_builds_what_is_there() -> None:
    for name, service in COMPOSE["services"].items():
        if "build" in service:
            build = service["build"]
            assert (DOCKER / build["context"]).resolve() == ROOT.resolve()
            assert (ROOT / build["dockerfile"]).is_file() and build["target"] in stages()
        else:
            assert _EXACT_TAG.fullmatch(service["image"].replace(":v", ":")), name
        for mount in service.get("volumes", ()):
            source = re.sub(r"\$\{\w+:-(\w+)\}", r"\1", mount).split(":")[0]
            in_tree = source.startswith(".")
            assert (DOCKER / source).exists() if in_tree else source in COMPOSE["volumes"], mount


def test_compose_services_depend_on_each_other_and_only_listen_to_this_machine() -> None:
    services = COMPOSE["services"]
    for service in services.values():
        assert set(service.get("depends_on", ())) <= set(services)
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    (job,) = SCRAPED["scrape_configs"]
    (target,) = job["static_configs"][0]["targets"]
    assert target == "server:8002" and target.split(":")[0] in services


def test_grafana_finds_its_data_source_and_dashboards_where_compose_mounts_them() -> None:
    grafana = COMPOSE["services"]["grafana"]
    mounts = dict(mount.split(":")[:2] for mount in grafana["volumes"])
    provisioning = DOCKER / "grafana" / "provisioning"
    source = yaml.safe_load((provisioning / "datasources" / "prometheus.yaml").read_text())
    (datasource,) = source["datasources"]
    assert datasource["url"].split("//")[1].split(":")[0] in COMPOSE["services"]
    assert datasource["jsonData"]["timeInterval"] == SCRAPED["global"]["scrape_interval"]
    provider = yaml.safe_load((provisioning / "dashboards" / "dashboards.yaml").read_text())
    (found,) = provider["providers"]
    assert mounts["./grafana/dashboards"] == found["options"]["path"]
    home = grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert (DOCKER / "grafana" / "dashboards" / Path(home).name).is_file()
    assert str(Path(home).parent) == found["options"]["path"]
