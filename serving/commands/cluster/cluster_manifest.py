"""Writes the manifest of a cluster."""

from pathlib import Path
from typing import Annotated

import typer

from serving.cluster.cluster_file import read_cluster
from serving.cluster.kubernetes_manifest import manifest_text
from serving.commands.cluster.arguments import FileArgument
from serving.commands.console import check_target, write_target
from sharded_infer.errors import InputError


def cluster_manifest_command(
    file: FileArgument,
    kubernetes: Annotated[
        bool, typer.Option("--kubernetes", help="For `kubectl apply`; no other kind yet.")
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", metavar="FILE", help="File to write; default: printed."),
    ] = None,
) -> None:
    """Write the processes of a cluster as objects of Kubernetes.

    A StatefulSet with a headless Service for each host of the plan, a Deployment and a Service for
    the fronts, and the hosts file that fronts read (docs/kubernetes.md).
    """
    if not kubernetes:
        raise InputError("cluster manifest: expected --kubernetes, got no kind of manifest")
    check_target(output)
    text = manifest_text(read_cluster(file))
    if output is None:
        typer.echo(text, nl=False)
    else:
        write_target(output, text)
