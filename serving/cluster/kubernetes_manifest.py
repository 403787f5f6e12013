"""A cluster as objects of Kubernetes: a StatefulSet for each host of the plan, and the fronts.

A set for each host: its ordinals are the replicas, so that a rolling update replaces one replica of
each host after another, and hosts differ in memory, disk and number of replicas.
"""

from typing import Any

from serving.cluster.cluster_file import ClusterFile
from serving.cluster.pods import (
    CACHE,
    FRONT_PORT,
    HOSTS_FILE,
    HTTP_PORT,
    SHARD_HOST_PORT,
    Plain,
    front_pod,
    place_of,
    secret_of,
    shard_host_pod,
)
from serving.cluster.process_words import hosts_text
from serving.cluster.yaml_text import yaml_text
from sharded_infer.errors import InputError

# Fronts connect to a replica again within this time, before the next one is replaced.
_SETTLE_SECONDS = 10


def manifest_text(cluster: ClusterFile) -> str:
    """The objects as YAML documents.

    Raises:
        InputError: pods cannot reach the repository, or two files of the secret have one name.
    """
    if "://" not in cluster.repository:
        raise InputError(
            f"repository: expected a URL such as s3://bucket/models, which pods reach, "
            f"got {cluster.repository!r}"
        )
    files = _files(cluster)
    head = ["# Written by `sharded-infer cluster manifest --kubernetes`."]
    if files:
        named = " ".join(f"--from-file={file}" for file in files)
        head.append(f"# Before: kubectl create secret generic {secret_of(cluster)} {named}")
    documents = [yaml_text(one) for one in manifest(cluster)]
    return "\n".join(head) + "\n" + "---\n".join(documents)


def manifest(cluster: ClusterFile) -> list[Plain]:
    """The objects, in the order in which they are needed."""
    found = [_hosts_file(cluster)]
    for number in sorted(cluster.hosts):
        found += [
            _host_service(cluster, number),
            _disruption(f"{_host_name(cluster, number)}", _host_labels(cluster, number)),
            _host_set(cluster, number),
        ]
    labels = {"app": cluster.name, "role": "front"}
    return [
        *found,
        _front_service(cluster, labels),
        _disruption(f"{cluster.name}-front", labels),
        _fronts(cluster, labels),
    ]


def _files(cluster: ClusterFile) -> list[str]:
    """The files that the secret holds, as `cluster.toml` names them."""
    sections = (cluster.fronts.security, cluster.shard_hosts.security)
    named = [file for section in sections for file in section.files.values()]
    files = sorted({*named, *cluster.lookups.files})
    places: dict[str, str] = {}
    for file in files:
        if (other := places.setdefault(place_of(file), file)) != file:
            raise InputError(f"{other} and {file}: expected files of different names in one secret")
    return files


def _host_name(cluster: ClusterFile, number: int) -> str:
    return f"{cluster.name}-host-{number}"


def _host_labels(cluster: ClusterFile, number: int) -> dict[str, str]:
    return {"app": cluster.name, "role": "shard-host", "host": str(number)}


def _hosts_file(cluster: ClusterFile) -> Plain:
    port = cluster.shard_hosts.port or SHARD_HOST_PORT
    addresses = {}
    for number, host in cluster.hosts.items():
        name = _host_name(cluster, number)
        addresses[number] = [f"{name}-{ordinal}.{name}:{port}" for ordinal in range(host.replicas)]
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{cluster.name}-hosts", "labels": {"app": cluster.name}},
        "data": {HOSTS_FILE: hosts_text(cluster, addresses, place_of)},
    }


def _host_service(cluster: ClusterFile, number: int) -> Plain:
    labels = _host_labels(cluster, number)
    port = cluster.shard_hosts.port or SHARD_HOST_PORT
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": _host_name(cluster, number), "labels": labels},
        "spec": {
            "clusterIP": "None",
            # Fronts ask the hosts themselves whether they hold a version.
            "publishNotReadyAddresses": True,
            "selector": labels,
            "ports": [{"name": "lookups", "port": port, "targetPort": "lookups"}],
        },
    }


def _host_set(cluster: ClusterFile, number: int) -> Plain:
    host, labels = cluster.hosts[number], _host_labels(cluster, number)
    claim: dict[str, Any] = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": host.disk}},
    }
    if cluster.kubernetes.storage_class is not None:
        claim["storageClassName"] = cluster.kubernetes.storage_class
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": _host_name(cluster, number), "labels": labels},
        "spec": {
            "replicas": host.replicas,
            "serviceName": _host_name(cluster, number),
            "selector": {"matchLabels": labels},
            # All load at once; updates go by ordinal all the same.
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 0}},
            "minReadySeconds": _SETTLE_SECONDS,
            "template": shard_host_pod(cluster, number),
            "volumeClaimTemplates": [{"metadata": {"name": CACHE}, "spec": claim}],
        },
    }


def _front_service(cluster: ClusterFile, labels: dict[str, str]) -> Plain:
    section = cluster.fronts
    ports = {"grpc": section.port or FRONT_PORT, "http": section.http_port or HTTP_PORT}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": cluster.name, "labels": labels},
        "spec": {
            "selector": labels,
            "ports": [
                {"name": name, "port": port, "targetPort": name} for name, port in ports.items()
            ],
        },
    }


def _fronts(cluster: ClusterFile, labels: dict[str, str]) -> Plain:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": f"{cluster.name}-front", "labels": labels},
        "spec": {
            "replicas": cluster.fronts.count,
            "selector": {"matchLabels": labels},
            "strategy": {
                "type": "RollingUpdate",
                "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1},
            },
            "template": front_pod(cluster),
        },
    }


def _disruption(name: str, labels: dict[str, str]) -> Plain:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name, "labels": labels},
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": labels}},
    }
