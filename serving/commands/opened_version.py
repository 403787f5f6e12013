"""A published version opened for a command's own use."""

import torch

from sharded_infer.artifact import Artifact
from sharded_infer.model import Model
from sharded_infer.model_check import check_golden


def open_published(artifact: Artifact, topology: str | None = None) -> Model:
    """Opens a version as a server does; its files are taken as they are: see `verify_files`."""
    # One intra-op thread, as in a server: scores are then equal to the bit.
    torch.set_num_threads(1)
    return Model(artifact, artifact.plan(topology))


def golden_differences(artifact: Artifact) -> dict[str, float]:
    """The golden requests' largest difference from the fp32 model, by plan.

    Raises:
        GateError: one is larger than the version allows.
    """
    return {
        topology: check_golden(open_published(artifact, topology))
        for topology in artifact.manifest.plans
    }
