"""The manifest of a cluster: the API's schemas take it, and the processes take its options."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from serving.remote_lookups.hosts_file import read_hosts
from sharded_infer.byte_sizes import parse_size
from tests.support.servers import Command

ROOT = Path(__file__).parents[3]
# The oldest and the newest release of Kubernetes that get fixes.
RELEASES = ("1.34", "1.37")
PLAIN = """
name = "ranker"
repository = "s3://bucket/models"
topology = "three"
models = ["dlrm", "other"]

[fronts]
count = 3
memory = "20GB"
cpus = 4
security = { tokens_file = "tokens" }
settings = { max_connection_age = 60, transport = "native", shared_memory = false }

[shard_hosts]
security = { tokens_file = "tokens" }
settings = { drain_seconds = 5 }

[hosts.1]
replicas = 2
memory = "200GB"
disk = "400GB"

[hosts.2]
memory = "100GiB"
cpus = 0.5

[lookups]
timeout_ms = 200
token_file = "token"
"""
SECURE = """
name = "r"
repository = "s3://bucket/models"

[fronts]
memory = "20GB"
port = 9001
http_port = 9002
security = { tls_certificate = "front/front.pem", tls_key = "front/front.key" }

[shard_hosts]
port = 9003
[shard_hosts.security]
tls_certificate = "host/host.pem"
tls_key = "host/host.key"
tls_client_ca = "ca.pem"

[hosts.0]
memory = "1GB"

[lookups.tls]
ca = "ca.pem"
certificate = "front/front.pem"
key = "front/front.key"

[kubernetes]
image = "registry.example/infer:2"
secret = "files"
environment_secret = "bucket"
service_account = "reader"
storage_class = "fast"
"""


@dataclass(frozen=True)
class Manifest:
    objects: dict[tuple[str, str], dict[str, Any]]
    text: str

    def spec(self, kind: str, name: str) -> Any:
        return self.objects[kind, name]["spec"]

    def pod(self, kind: str, name: str) -> Any:
        return self.spec(kind, name)["template"]["spec"]

    def container(self, kind: str, name: str) -> Any:
        (found,) = self.pod(kind, name)["containers"]
        return found


def manifest_of(text: str, folder: Path, command: Command) -> Manifest:
    file, target = folder / "cluster.toml", folder / "cluster.yaml"
    file.write_text(text)
    done = command("cluster", "manifest", "--kubernetes", file, "--output", target)
    assert done.code == 0, done.err
    printed = command("cluster", "manifest", "--kubernetes", file)
    assert printed.out == target.read_text()
    objects = {
        (one["kind"], one["metadata"]["name"]): one for one in yaml.safe_load_all(printed.out)
    }
    return Manifest(objects, printed.out)


@pytest.fixture(params=[PLAIN, SECURE], ids=["plain", "secure"])
def either(request: pytest.FixtureRequest, tmp_path: Path, sharded_infer: Command) -> Manifest:
    return manifest_of(request.param, tmp_path, sharded_infer)


@pytest.fixture
def plain(tmp_path: Path, sharded_infer: Command) -> Manifest:
    return manifest_of(PLAIN, tmp_path, sharded_infer)


@pytest.fixture
def secure(tmp_path: Path, sharded_infer: Command) -> Manifest:
    return manifest_of(SECURE, tmp_path, sharded_infer)


@pytest.mark.parametrize("release", RELEASES)
def test_the_schemas_of_kubernetes_take_every_object(either: Manifest, release: str) -> None:
    for one in either.objects.values():
        kubernetes_validate.validate(one, release, strict=True)


def test_the_schemas_refuse_what_is_no_field(plain: Manifest) -> None:
    one = plain.objects["StatefulSet", "ranker-host-1"]
    one["spec"]["replica"] = one["spec"].pop("replicas")
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(one, RELEASES[-1], strict=True)


def test_each_host_of_the_plan_is_a_set_whose_ordinals_are_its_replicas(plain: Manifest) -> None:
    kinds = sorted(key for key in plain.objects if key[0] in {"StatefulSet", "Deployment"})
    assert kinds == [
        ("Deployment", "ranker-front"),
        ("StatefulSet", "ranker-host-1"),
        ("StatefulSet", "ranker-host-2"),
    ]
    for number, replicas, memory in ((1, 2, 200 * 10**9), (2, 1, 100 * 2**30)):
        spec = plain.spec("StatefulSet", f"ranker-host-{number}")
        assert (spec["replicas"], spec["updateStrategy"]["type"]) == (replicas, "RollingUpdate")
        container = plain.container("StatefulSet", f"ranker-host-{number}")
        assert f"--host-number={number}" in container["args"]
        for bound in ("requests", "limits"):
            assert container["resources"][bound]["memory"] == memory
    assert plain.container("StatefulSet", "ranker-host-2")["resources"]["limits"]["cpu"] == "0.5"
    assert plain.spec("Deployment", "ranker-front")["replicas"] == 3


def test_the_processes_take_their_options(
    either: Manifest, tmp_path: Path, sharded_infer: Command
) -> None:
    for kind, name in either.objects:
        if kind not in {"StatefulSet", "Deployment"}:
            continue
        args = either.container(kind, name)["args"]
        done = sharded_infer(*args, "--print-config", "--json")
        assert done.code == 0, done.err
        settings = {key: said["value"] for key, said in json.loads(done.out).items()}
        ports = {one["name"]: one["containerPort"] for one in either.container(kind, name)["ports"]}
        assert settings["port"] == ports.get("lookups", ports.get("grpc"))
        assert settings["host"] == "0.0.0.0"  # noqa: S104 - of a pod
        needed = settings["drain_seconds"] + settings.get("grace_seconds", 0) + 10
        assert either.pod(kind, name)["terminationGracePeriodSeconds"] >= needed


def test_settings_of_the_file_arrive(plain: Manifest, sharded_infer: Command) -> None:
    args = plain.container("Deployment", "ranker-front")["args"]
    done = sharded_infer(*args, "--print-config", "--json")
    settings = {key: said["value"] for key, said in json.loads(done.out).items()}
    assert settings["max_connection_age"] == 60 and settings["shared_memory"] is False
    assert settings["model"] == ["dlrm", "other"] and settings["topology"] == "three"
    args = plain.container("StatefulSet", "ranker-host-1")["args"]
    assert "--drain-seconds=5" in args and "--topology=three" in args


def test_fronts_read_the_names_of_the_replicas(either: Manifest, tmp_path: Path) -> None:
    (name,) = (name for kind, name in either.objects if kind == "ConfigMap")
    text = either.objects["ConfigMap", name]["data"]["hosts.toml"]
    services = {
        name: one["spec"] for (kind, name), one in either.objects.items() if kind == "Service"
    }
    found = []
    for line in text.partition("[hosts]\n")[2].split("\n[")[0].splitlines():
        _, _, listed = line.partition(" = ")
        addresses = json.loads(listed)
        found += [addresses] if isinstance(addresses, str) else addresses
    expected = []
    for kind, name in either.objects:
        if kind == "StatefulSet":
            spec = either.spec(kind, name)
            service = services[spec["serviceName"]]
            assert service["clusterIP"] == "None" and service["publishNotReadyAddresses"]
            assert service["selector"] == spec["template"]["metadata"]["labels"]
            (port,) = service["ports"]
            expected += [
                f"{name}-{ordinal}.{spec['serviceName']}:{port['port']}"
                for ordinal in range(spec["replicas"])
            ]
    assert found == expected


def test_the_hosts_file_is_one(secure: Manifest, tmp_path: Path) -> None:
    file = tmp_path / "hosts.toml"
    file.write_text(secure.objects["ConfigMap", "r-hosts"]["data"]["hosts.toml"])
    hosts = read_hosts(file)
    assert hosts.tls is not None and list(hosts.hosts) == [0]
    assert hosts.tls.key == "/etc/sharded-infer/files/front.key"


def test_replicas_of_a_host_lie_on_different_nodes_and_one_at_a_time_is_disturbed(
    either: Manifest,
) -> None:
    for kind, name in either.objects:
        if kind != "StatefulSet":
            continue
        labels = either.spec(kind, name)["template"]["metadata"]["labels"]
        rules = either.pod(kind, name)["affinity"]["podAntiAffinity"]
        (rule,) = rules["requiredDuringSchedulingIgnoredDuringExecution"]
        assert rule["topologyKey"] == "kubernetes.io/hostname"
        assert rule["labelSelector"]["matchLabels"] == labels
        budget = either.spec("PodDisruptionBudget", name)
        assert budget["maxUnavailable"] == 1 and budget["selector"]["matchLabels"] == labels


def test_probes_ask_what_the_processes_answer(plain: Manifest, secure: Manifest) -> None:
    for container in (
        plain.container("StatefulSet", "ranker-host-1"),
        plain.container("Deployment", "ranker-front"),
    ):
        assert {"name": "http", "containerPort": 8002} in container["ports"]
        assert container["readinessProbe"]["httpGet"]["path"] == "/ready"
        for kind in ("startup", "liveness"):
            assert container[f"{kind}Probe"]["httpGet"]["path"] == "/live"
    # The kubelet has no certificate to show.
    host, front = (
        secure.container("StatefulSet", "r-host-0"),
        secure.container("Deployment", "r-front"),
    )
    command = ["python", "-m", "serving.cluster.host_check", "/etc/sharded-infer/hosts/hosts.toml"]
    assert host["readinessProbe"]["exec"] == {"command": command}
    assert host["livenessProbe"]["tcpSocket"] == {"port": "http"}
    assert front["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"


def test_what_is_written_and_read_is_mounted(either: Manifest) -> None:
    for kind, name in either.objects:
        if kind not in {"StatefulSet", "Deployment"}:
            continue
        pod, container = either.pod(kind, name), either.container(kind, name)
        claims = [
            claim["metadata"]["name"]
            for claim in either.spec(kind, name).get("volumeClaimTemplates", [])
        ]
        volumes = {volume["name"] for volume in pod["volumes"]}
        mounted = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
        assert set(mounted.values()) == volumes | set(claims)
        folders = {word.partition("=")[2].rpartition("/")[0] for word in container["args"]}
        folders = {folder for folder in folders if folder.startswith("/")}
        asked = container["readinessProbe"].get("exec", {"command": [""]})["command"][-1]
        folders |= {asked.rpartition("/")[0]} - {""}
        assert folders <= set(mounted) and container["securityContext"]["readOnlyRootFilesystem"]


def test_a_cache_is_smaller_than_its_disk(plain: Manifest) -> None:
    container = plain.container("StatefulSet", "ranker-host-1")
    variables = {one["name"]: one["value"] for one in container["env"]}
    (claim,) = plain.spec("StatefulSet", "ranker-host-1")["volumeClaimTemplates"]
    disk = claim["spec"]["resources"]["requests"]["storage"]
    assert parse_size(variables["SHARDED_INFER_CACHE_SIZE"], "cache") < disk == 400 * 10**9


def test_the_secret_is_told_with_its_files(plain: Manifest, secure: Manifest) -> None:
    assert (
        "# Before: kubectl create secret generic ranker-files --from-file=token --from-file=tokens"
        in plain.text
    )
    assert "generic files --from-file=ca.pem --from-file=front/front.key" in secure.text


def test_what_the_section_of_kubernetes_says_holds(secure: Manifest) -> None:
    container, pod = secure.container("Deployment", "r-front"), secure.pod("Deployment", "r-front")
    assert container["image"] == "registry.example/infer:2"
    assert container["envFrom"] == [{"secretRef": {"name": "bucket"}}]
    assert pod["serviceAccountName"] == "reader"
    (claim,) = secure.spec("StatefulSet", "r-host-0")["volumeClaimTemplates"]
    assert claim["spec"]["storageClassName"] == "fast"


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("s3://bucket/models", "models", "repository: expected a URL such as s3://bucket/models"),
        (
            'security = { tokens_file = "tokens" }\nsettings = { drain',
            'security = { tokens_file = "other/tokens" }\nsettings = { drain',
            "other/tokens and tokens: expected files of different names",
        ),
    ],
)
def test_what_pods_cannot_have_is_refused(
    old: str, new: str, words: str, tmp_path: Path, sharded_infer: Command
) -> None:
    file = tmp_path / "cluster.toml"
    assert old in PLAIN
    file.write_text(PLAIN.replace(old, new))
    done = sharded_infer("cluster", "manifest", "--kubernetes", file)
    assert done.code == 1 and words in done.err and not done.out


def test_the_example_of_the_page_is_taken(tmp_path: Path, sharded_infer: Command) -> None:
    page = (ROOT / "docs" / "cluster.md").read_text()
    example = page.partition("# cluster.toml\n")[2].partition("```")[0]
    found = manifest_of(example, tmp_path, sharded_infer)
    for one in found.objects.values():
        kubernetes_validate.validate(one, RELEASES[-1], strict=True)


def test_a_manifest_is_of_a_kind(tmp_path: Path, sharded_infer: Command) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(PLAIN)
    done = sharded_infer("cluster", "manifest", file)
    assert done.code == 1 and "expected --kubernetes" in done.err
