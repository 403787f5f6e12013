"""Pods of fronts and shard hosts, as Kubernetes' API describes them (core/v1)."""

from typing import Any

from serving.cluster.cluster_file import (
    FRONT_SETTINGS,
    ClusterFile,
    FrontsSection,
    HostSection,
    Security,
)
from serving.cluster.process_words import front_words, shard_host_words
from sharded_infer.files.cache_folder import CACHE_VARIABLE
from sharded_infer.repositories.storage.version_cache import CACHE_SIZE_VARIABLE

Plain = dict[str, Any]
FRONT_PORT, SHARD_HOST_PORT, HTTP_PORT = 8001, 8001, 8002
HOSTS_FILE = "hosts.toml"
CACHE = "cache"
_HOSTS_FOLDER, _FILES_FOLDER, _CACHE_FOLDER = (
    "/etc/sharded-infer/hosts",
    "/etc/sharded-infer/files",
    "/cache",
)
# Of the image.
_USER = 10001
# Of the cache's disk: the rest is the version that is being fetched, and the file system's own.
_CACHE_SHARE = 0.9
# Endpoints of a Service are removed within this time.
_GRACE_SECONDS = 10
# Beyond grace and drain: workers that hang, then the process that answers HTTP.
_PATIENCE_SECONDS = 20
# A version of terabytes is fetched and verified before the first answer.
_START_SECONDS, _PROBE_SECONDS = 4 * 3600, 5


def place_of(file: str) -> str:
    """Where a file of the secret lies in a pod."""
    return f"{_FILES_FOLDER}/{file.rpartition('/')[2]}"


def shard_host_pod(cluster: ClusterFile, number: int) -> Plain:
    """The pod of every replica of a host; its cache is a claim of the StatefulSet."""
    host, section = cluster.hosts[number], cluster.shard_hosts
    ports = {
        "lookups": section.port or SHARD_HOST_PORT,
        "http": section.http_port or HTTP_PORT,
    }
    is_ready, seconds = _http(section.security, "/ready"), 2
    asks_itself = section.security.tls_client_ca is not None
    if asks_itself:
        # The kubelet has no certificate to show.
        command = ["python", "-m", "serving.cluster.host_check", f"{_HOSTS_FOLDER}/{HOSTS_FILE}"]
        is_ready, seconds = {"exec": {"command": command}}, 10
    words = shard_host_words(
        cluster,
        number,
        host="0.0.0.0",  # noqa: S104 - of a pod
        port=ports["lookups"],
        http_port=ports["http"],
        place=place_of,
    )
    container = _container(
        cluster,
        host,
        name="shard-host",
        words=words,
        ports=ports,
        probes=_probes(
            section.security,
            is_ready | {"periodSeconds": seconds, "timeoutSeconds": seconds},
            # What it holds in memory was fetched for hours.
            failures=6,
        ),
    )
    labels = {"app": cluster.name, "role": "shard-host", "host": str(number)}
    volumes = []
    if asks_itself:
        volumes.append(_mount_hosts_file(cluster, container))
    ends = _drain_seconds(section.settings) + _PATIENCE_SECONDS
    return _pod(cluster, container, labels, ends, volumes=volumes, named=section.security.files)


def front_pod(cluster: ClusterFile) -> Plain:
    """The pod of every front."""
    section = cluster.fronts
    ports = {"grpc": section.port or FRONT_PORT, "http": section.http_port or HTTP_PORT}
    words = front_words(
        cluster,
        host="0.0.0.0",  # noqa: S104 - of a pod
        port=ports["grpc"],
        http_port=ports["http"],
        hosts_file=f"{_HOSTS_FOLDER}/{HOSTS_FILE}",
        place=place_of,
    )
    grace = section.settings.get("grace_seconds", _GRACE_SECONDS)
    if "grace_seconds" not in section.settings:
        words.append(f"--grace-seconds={grace}")
    container = _container(
        cluster,
        section,
        name="front",
        words=words,
        ports=ports,
        probes=_probes(
            section.security,
            _http(section.security, "/ready") | {"periodSeconds": 2, "timeoutSeconds": 2},
        ),
    )
    volumes = [
        _mount_hosts_file(cluster, container),
        {"name": CACHE, "emptyDir": {"sizeLimit": section.disk}},
    ]
    files = {**section.security.files, **{file: file for file in cluster.lookups.files}}
    labels = {"app": cluster.name, "role": "front"}
    seconds = grace + _drain_seconds(section.settings) + _PATIENCE_SECONDS
    return _pod(cluster, container, labels, seconds, volumes=volumes, named=files)


def _mount_hosts_file(cluster: ClusterFile, container: Plain) -> Plain:
    """Mounts the hosts file in a container, and returns its volume."""
    container["volumeMounts"].append(
        {"name": "hosts", "mountPath": _HOSTS_FOLDER, "readOnly": True}
    )
    return {"name": "hosts", "configMap": {"name": f"{cluster.name}-hosts"}}


def _drain_seconds(settings: Plain) -> float:
    return float(settings.get("drain_seconds", FRONT_SETTINGS["drain_seconds"].default))


def _probes(security: Security, readiness: Plain, *, failures: int = 3) -> Plain:
    """The probes of a container.

    Args:
        failures: of the liveness probe, in a row, after which it is started again.
    """
    lives = _http(security, "/live")
    return {
        "startupProbe": lives | _started(),
        "livenessProbe": lives
        | {"periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": failures},
        "readinessProbe": readiness,
    }


def _http(security: Security, path: str) -> Plain:
    if security.tls_client_ca is not None:
        # The kubelet has no certificate to show.
        return {"tcpSocket": {"port": "http"}}
    scheme = "HTTP" if security.tls_certificate is None else "HTTPS"
    return {"httpGet": {"path": path, "port": "http", "scheme": scheme}}


def _started() -> Plain:
    return {
        "periodSeconds": _PROBE_SECONDS,
        "timeoutSeconds": 5,
        "failureThreshold": _START_SECONDS // _PROBE_SECONDS,
    }


def _container(
    cluster: ClusterFile,
    section: FrontsSection | HostSection,
    *,
    name: str,
    words: list[str],
    ports: dict[str, int],
    probes: Plain,
) -> Plain:
    resources = {"cpu": f"{section.cpus:g}", "memory": section.memory}
    found: Plain = {
        "name": name,
        "image": cluster.kubernetes.image,
        "args": words,
        "env": [
            {"name": CACHE_VARIABLE, "value": _CACHE_FOLDER},
            {"name": CACHE_SIZE_VARIABLE, "value": f"{section.disk * _CACHE_SHARE / 1e6:.0f}MB"},
        ],
        "ports": [{"name": port, "containerPort": number} for port, number in ports.items()],
        **probes,
        "resources": {"requests": resources, "limits": dict(resources)},
        "securityContext": {
            "readOnlyRootFilesystem": True,
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [
            {"name": CACHE, "mountPath": _CACHE_FOLDER},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108 - of a pod
        ],
    }
    if cluster.kubernetes.environment_secret is not None:
        found["envFrom"] = [{"secretRef": {"name": cluster.kubernetes.environment_secret}}]
    return found


def _pod(
    cluster: ClusterFile,
    container: Plain,
    labels: dict[str, str],
    seconds: float,
    *,
    volumes: list[Plain],
    named: dict[str, str],
) -> Plain:
    volumes = [*volumes, {"name": "tmp", "emptyDir": {}}]
    if named:
        secret = {"secretName": secret_of(cluster), "defaultMode": 0o440}
        volumes.append({"name": "files", "secret": secret})
        container["volumeMounts"].append(
            {"name": "files", "mountPath": _FILES_FOLDER, "readOnly": True}
        )
    spec: Plain = {
        # No variables SHARDED_INFER_* of Kubernetes' own.
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": round(seconds),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": volumes,
    }
    if cluster.kubernetes.service_account is not None:
        spec["serviceAccountName"] = cluster.kubernetes.service_account
    else:
        spec["automountServiceAccountToken"] = False
    spec |= _placement(labels)
    return {"metadata": {"labels": labels}, "spec": spec}


def _placement(labels: dict[str, str]) -> Plain:
    """No two replicas of a host on one node; all spread over zones where there are any."""
    selector = {"matchLabels": labels}
    node = {"labelSelector": selector, "topologyKey": "kubernetes.io/hostname"}
    is_required = "host" in labels
    found: Plain = {
        "topologySpreadConstraints": [
            {
                "maxSkew": 1,
                "topologyKey": "topology.kubernetes.io/zone",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": selector,
            }
        ],
    }
    rule: Plain
    if is_required:
        rule = {"requiredDuringSchedulingIgnoredDuringExecution": [node]}
    else:
        weighted = {"weight": 100, "podAffinityTerm": node}
        rule = {"preferredDuringSchedulingIgnoredDuringExecution": [weighted]}
    return found | {"affinity": {"podAntiAffinity": rule}}


def secret_of(cluster: ClusterFile) -> str:
    """The name of the secret that holds the files of `cluster.toml`."""
    return cluster.kubernetes.secret or f"{cluster.name}-files"
