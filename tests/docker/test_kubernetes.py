"""The templates for Kubernetes: the API takes their objects, and the processes their settings."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from serving.remote_lookups.hosts_file import read_hosts
from sharded_infer.byte_sizes import parse_size
from sharded_infer.files.cache_folder import CACHE_VARIABLE
from sharded_infer.repositories.storage.version_cache import CACHE_SIZE_VARIABLE
from tests.docker.dockerfile import DOCKER, ROOT, output_of, values
from tests.support.servers import Command

PAGE = ROOT / "docs" / "kubernetes.md"
TEMPLATES = DOCKER / "kubernetes"
# The oldest and the newest release of Kubernetes that get fixes.
RELEASES = ("1.34", "1.37")
# Beyond the draining time: workers that hang, then the process that answers HTTP.
PATIENCE_SECONDS = 10
NEEDS_KUBECTL = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is missing")
# The cluster as it is in the tree, and as the page changes it.
NAMES = (
    "server",
    pytest.param("cluster", marks=NEEDS_KUBECTL),
    pytest.param("changed", marks=NEEDS_KUBECTL),
)


@dataclass(frozen=True)
class Workload:
    kind: str
    name: str
    spec: dict[str, Any]
    variables: dict[str, str]

    @property
    def labels(self) -> dict[str, str]:
        found: dict[str, str] = self.spec["template"]["metadata"]["labels"]
        return found

    @property
    def pod(self) -> Any:
        return self.spec["template"]["spec"]

    @property
    def container(self) -> Any:
        (found,) = self.pod["containers"]
        return found

    @property
    def ports(self) -> dict[str, int]:
        return {port["name"]: port["containerPort"] for port in self.container["ports"]}

    @property
    def words(self) -> list[str]:
        """Its command line, as the kubelet expands it."""
        return [
            re.sub(r"\$\((\w+)\)", lambda name: self.variables[name[1]], word)
            for word in self.container["args"]
        ]


@dataclass(frozen=True)
class Template:
    objects: dict[tuple[str, str], Any]

    @classmethod
    def read(cls, text: str) -> "Template":
        documents = yaml.safe_load_all(text)
        return cls({(one["kind"], one["metadata"]["name"]): one for one in documents})

    def of(self, kind: str) -> dict[str, Any]:
        return {name: one for (found, name), one in self.objects.items() if found == kind}

    @property
    def workloads(self) -> dict[str, Workload]:
        return {
            name: Workload(kind, name, one["spec"], self._variables(one["spec"]["template"]))
            for kind in ("StatefulSet", "Deployment")
            for name, one in self.of(kind).items()
        }

    def _variables(self, pod: Any) -> dict[str, str]:
        (container,) = pod["spec"]["containers"]
        variables: dict[str, str] = {}
        for source in container.get("envFrom", []):
            if "configMapRef" in source:
                variables |= self.of("ConfigMap")[source["configMapRef"]["name"]]["data"]
        for said in container["env"]:
            value = said.get("value")
            if value is None:
                path = said["valueFrom"]["fieldRef"]["fieldPath"]
                value = pod["metadata"]["labels"][path.split("'")[1]]
            variables[said["name"]] = value
        return variables

    @property
    def hosts_file(self) -> str:
        text: str = self.of("ConfigMap")["ranker-hosts"]["data"]["hosts.toml"]
        return text


Settings = Callable[[Workload], dict[str, Any]]


@pytest.fixture(scope="module")
def rendered(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Template]:
    @cache
    def render(name: str) -> Template:
        if name == "server":
            return Template.read((TEMPLATES / "server" / "server.yaml").read_text())
        if name == "cluster":
            return built(TEMPLATES / "cluster")
        return built(changed_as_the_page_says(tmp_path_factory.mktemp("changed")))

    return render


@pytest.fixture
def template(request: pytest.FixtureRequest, rendered: Callable[[str], Template]) -> Template:
    return rendered(request.param)


@pytest.fixture
def settings(sharded_infer: Command, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """What a process makes of its command line and its variables, by its own reader."""

    def read(workload: Workload) -> dict[str, Any]:
        with monkeypatch.context() as patch:
            for name, value in workload.variables.items():
                patch.setenv(name, value)
            done = sharded_infer(*workload.words, "--print-config", "--json")
        # Unknown variables are warned of.
        assert "SHARDED_INFER_" not in done.err
        return {name: said["value"] for name, said in done.json().items()}

    return read


every_template = pytest.mark.parametrize("template", NAMES, indirect=True)
every_cluster = pytest.mark.parametrize("template", NAMES[1:], indirect=True)


def built(folder: Path) -> Template:
    return Template.read(output_of("kubectl", "kustomize", folder))


def changed_as_the_page_says(folder: Path) -> Path:
    """TLS, another image, a third host, and the page's own block."""
    shutil.copytree(TEMPLATES / "cluster", folder, dirs_exist_ok=True)
    block = PAGE.read_text().partition("```yaml\n")[2].partition("```")[0]
    image = "newName: registry.example/infer\n    newTag: gpu"
    shutil.copytree(folder / "host-2", folder / "host-3")
    for file, edits in {
        "kustomization.yaml": {"newTag: cpu": image, "  - host-2\n": "  - host-2\n  - host-3\n"},
        "host-3/kustomization.yaml": {"Host 2": "Host 3", '"-2"': '"-3"', '"2"': '"3"'},
        "hosts.toml": {
            "\n# With": '3 = ["ranker-host-3-0.ranker-host-3:8001", '
            '"ranker-host-3-1.ranker-host-3:8001"]\n\n# With',
            "# [tls]": "[tls]",
            **{f"# {name} =": f"{name} =" for name in ("ca", "certificate", "key")},
        },
    }.items():
        text = (folder / file).read_text()
        for old, new in edits.items():
            assert text.count(old) == 1, (file, old)
            text = text.replace(old, new)
        (folder / file).write_text(text)
    with (folder / "kustomization.yaml").open("a") as file_of_all:
        file_of_all.write(block)
    return folder


@pytest.mark.parametrize("release", RELEASES)
@every_template
def test_the_schemas_of_kubernetes_take_every_object(template: Template, release: str) -> None:
    for one in template.objects.values():
        kubernetes_validate.validate(one, release, strict=True)


@every_template
def test_the_processes_take_their_settings(template: Template, settings: Settings) -> None:
    for workload in template.workloads.values():
        taken = settings(workload)
        assert taken["host"] == "0.0.0.0"  # noqa: S104 - of a pod
        assert taken["repository"] == "s3://bucket/models"
        grpc = "lookups" if workload.kind == "StatefulSet" else "grpc"
        assert workload.ports == {grpc: taken["port"], "http": taken["http_port"]}
        needed = taken["drain_seconds"] + taken.get("grace_seconds", 0) + PATIENCE_SECONDS
        assert workload.pod["terminationGracePeriodSeconds"] >= needed


@every_template
def test_services_find_their_pods_and_ports(template: Template) -> None:
    workloads = list(template.workloads.values())
    found = []
    for name, service in template.of("Service").items():
        selector = service["spec"]["selector"]
        (workload,) = [one for one in workloads if selector.items() <= one.labels.items()]
        for port in service["spec"]["ports"]:
            assert workload.ports[port["targetPort"]] == port["port"]
        if workload.kind == "StatefulSet":
            assert workload.spec["serviceName"] == name and selector == workload.labels
            assert service["spec"]["clusterIP"] == "None"
            assert service["spec"]["publishNotReadyAddresses"]
        found.append(workload.name)
    assert sorted(found) == sorted(one.name for one in workloads)
    for one in workloads:
        assert one.spec["selector"]["matchLabels"].items() <= one.labels.items()


@every_template
def test_probes_ask_what_the_processes_answer(template: Template, settings: Settings) -> None:
    paths = json.loads((ROOT / "serving/http_api/openapi.json").read_text())["paths"]
    assert {"/live", "/ready"} <= set(paths)
    for workload in template.workloads.values():
        taken, container = settings(workload), workload.container
        scheme = {} if taken["tls_certificate"] is None else {"scheme": "HTTPS"}
        for kind, path in (("startup", "/live"), ("liveness", "/live"), ("readiness", "/ready")):
            probe = container[f"{kind}Probe"]
            if taken["tls_client_ca"] is None:
                assert probe["httpGet"] == {"path": path, "port": "http", **scheme}
                assert not probe.keys() & {"tcpSocket", "exec"}
                continue
            # The kubelet has no certificate to show.
            assert "httpGet" not in probe
            if kind == "readiness":
                *command, file = probe["exec"]["command"]
                assert command == ["python", "-m", "serving.cluster.host_check"]
                assert file == "/etc/sharded-infer/hosts/hosts.toml"
            else:
                assert probe["tcpSocket"] == {"port": "http"}


@every_template
def test_what_is_written_and_read_is_mounted(template: Template, settings: Settings) -> None:
    for workload in template.workloads.values():
        taken, container = settings(workload), workload.container
        claims = workload.spec.get("volumeClaimTemplates", [])
        sizes = {
            one["metadata"]["name"]: one["spec"]["resources"]["requests"]["storage"]
            for one in claims
        }
        volumes = {one["name"]: one for one in workload.pod["volumes"]}
        mounted = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
        assert sorted(mounted.values()) == sorted([*volumes, *sizes])
        assert "/tmp" in mounted  # noqa: S108 - of a pod
        files = [value for value in taken.values() if str(value).startswith("/etc/")]
        assert files and {str(Path(file).parent) for file in files} <= set(mounted)
        cache = mounted[workload.variables[CACHE_VARIABLE]]
        size = sizes.get(cache) or volumes[cache]["emptyDir"]["sizeLimit"]
        held = parse_size(workload.variables[CACHE_SIZE_VARIABLE], "cache")
        assert held < parse_size(f"{size}B", "volume")


@every_template
def test_pods_run_as_the_image_does(template: Template) -> None:
    user, _, group = values("runtime", "USER")[-1].partition(":")
    for workload in template.workloads.values():
        security, container = workload.pod["securityContext"], workload.container
        assert (security["runAsUser"], security["runAsGroup"]) == (int(user), int(group))
        assert security["runAsNonRoot"] and container["securityContext"]["readOnlyRootFilesystem"]
        assert not workload.pod["enableServiceLinks"]
        assert container["resources"]["requests"] == container["resources"]["limits"]


@pytest.mark.parametrize("template", NAMES[:1], indirect=True)
def test_a_server_has_its_cores_and_the_pages_times(template: Template, settings: Settings) -> None:
    (workload,) = template.workloads.values()
    taken = settings(workload)
    assert taken["follow"] == "labels:stable"
    cores = int(workload.container["resources"]["limits"]["cpu"])
    assert taken["workers"] * taken["slots"] == cores
    page = " ".join(PAGE.read_text().split())
    assert f"grace of {taken['grace_seconds']:g}" in page
    beyond = workload.pod["terminationGracePeriodSeconds"] - (
        taken["grace_seconds"] + taken["drain_seconds"]
    )
    assert f"is the sum and {beyond:g}" in page


@every_cluster
def test_hosts_are_sets_of_replicas(template: Template, settings: Settings, tmp_path: Path) -> None:
    file = tmp_path / "hosts.toml"
    file.write_text(template.hosts_file)
    expected = {}
    for workload in template.workloads.values():
        if workload.kind == "Deployment":
            assert settings(workload)["topology"] == "three"
            continue
        number = workload.labels["host"]
        assert f"--host-number={number}" in workload.words
        assert settings(workload)["topology"] == "three"
        assert workload.spec["updateStrategy"] == {"type": "RollingUpdate"}
        port = workload.ports["lookups"]
        expected[int(number)] = tuple(
            f"{workload.name}-{ordinal}.{workload.spec['serviceName']}:{port}"
            for ordinal in range(workload.spec["replicas"])
        )
    assert read_hosts(file).hosts == expected
    front = template.workloads["ranker-front"]
    assert "--shard-hosts=/etc/sharded-infer/hosts/hosts.toml" in front.words


@every_cluster
def test_replicas_lie_on_different_nodes_and_one_at_a_time_is_disturbed(template: Template) -> None:
    for workload in template.workloads.values():
        budget = template.of("PodDisruptionBudget")[workload.name]["spec"]
        assert budget["maxUnavailable"] == 1
        assert budget["selector"]["matchLabels"] == workload.labels
        (spread,) = workload.pod["topologySpreadConstraints"]
        assert spread["labelSelector"]["matchLabels"] == workload.labels
        rules = workload.pod["affinity"]["podAntiAffinity"]
        if workload.kind == "StatefulSet":
            (rule,) = rules["requiredDuringSchedulingIgnoredDuringExecution"]
        else:
            (weighted,) = rules["preferredDuringSchedulingIgnoredDuringExecution"]
            rule = weighted["podAffinityTerm"]
        assert rule["topologyKey"] == "kubernetes.io/hostname"
        assert rule["labelSelector"]["matchLabels"] == workload.labels


@NEEDS_KUBECTL
@pytest.mark.parametrize("name", ["server", "cluster"])
def test_the_secret_is_made_with_the_files_that_pods_read(
    name: str, rendered: Callable[[str], Template], settings: Settings
) -> None:
    head = (TEMPLATES / name / "kustomization.yaml").read_text()
    (told,) = re.findall(r"^#     kubectl create secret generic (.+)$", head, re.MULTILINE)
    assert f"kubectl create secret generic {told}" in PAGE.read_text()
    secret, *files = told.split()
    found = rendered(name)
    named = {settings(one)["tokens_file"] for one in found.workloads.values()}
    if name == "cluster":
        named |= set(re.findall(r'^token_file = "(.+)"$', found.hosts_file, re.MULTILINE))
    assert {f"--from-file={Path(file).name}" for file in named} == set(files)
    for one in found.workloads.values():
        secrets = [volume["secret"] for volume in one.pod["volumes"] if "secret" in volume]
        assert [volume["secretName"] for volume in secrets] == [secret]


@NEEDS_KUBECTL
def test_what_the_page_changes_holds(
    rendered: Callable[[str], Template], settings: Settings, tmp_path: Path
) -> None:
    changed = rendered("changed")
    for workload in changed.workloads.values():
        assert workload.container["image"] == "registry.example/infer:gpu"
        assert workload.pod["serviceAccountName"] == "reader"
        taken, claims = settings(workload), workload.spec.get("volumeClaimTemplates", [])
        assert [claim["spec"]["storageClassName"] for claim in claims] == ["fast"] * len(claims)
        assert (taken["tls_client_ca"] is None) == (workload.kind == "Deployment")
    file = tmp_path / "hosts.toml"
    file.write_text(changed.hosts_file)
    tls = read_hosts(file).tls
    assert tls is not None
    folder = "/etc/sharded-infer/files"
    assert [tls.ca, tls.certificate, tls.key] == [
        f"{folder}/{name}" for name in ("ca.pem", "front.pem", "front.key")
    ]
