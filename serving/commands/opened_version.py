"""Opens a published version for a command."""

import torch

from sharded_infer.artifacts.artifact import Artifact
from sharded_infer.artifacts.mapped_id_maps import open_id_maps
from sharded_infer.engines.golden_check import check_golden
from sharded_infer.engines.model import Model


def open_published(artifact: Artifact, topology: str | None = None) -> Model:
    """Open a version as a server does, without verifying its files; see `verify_files`."""
    # One intra-op thread, as in a server: scores are then equal to the bit.
    torch.set_num_threads(1)
    return Model(artifact, artifact.plan(topology))


def golden_differences(artifact: Artifact) -> dict[str, float]:
    """The golden requests' largest difference from the fp32 model, by plan.

    Raises:
        GateError: one is larger than the version allows.
        InputError: an id map is not as publishing writes it; names the table.
    """
    for id_map in open_id_maps(artifact).values():
        id_map.check()
    return {
        topology: check_golden(open_published(artifact, topology))
        for topology in artifact.manifest.plans
    }
