"""MLPerf Inference's DLRM-v2, and its requests of one user."""

import numpy as np
from numpy.typing import NDArray
from torch import nn

from serving.bench.workloads.requests import IdDistribution
from serving.bench.workloads.workload import DENSE, Inputs, Workload
from sharded_infer.specs.precision import Precision
from sharded_infer.zoo.dcnv2 import DCNv2

# MLPerf Inference v4.0 to v5.1, recommendation/dlrm_v2: num_embeddings_per_feature,
# multi_hot_sizes and the layers of the reference implementation's command line.
ROWS = (
    *(40_000_000, 39_060, 17_295, 7_424, 20_265, 3, 7_122, 1_543, 63, 40_000_000, 3_067_956),
    *(405_282, 10, 2_209, 11_938, 155, 4, 976, 14, 40_000_000, 40_000_000, 40_000_000, 590_152),
    *(12_973, 108, 36),
)
IDS_OF_A_BAG = (
    *(3, 2, 1, 2, 6, 1, 1, 1, 1, 7, 3, 8, 1, 6, 9, 5, 1, 1, 1, 12, 100, 27, 10, 3, 1, 1),
)
DIM = 128
DENSE_WIDTH = 13
BOTTOM = (512, 256, DIM)
TOP = (1024, 1024, 512, 256, 1)
CROSS_LAYERS, CROSS_RANK = 3, 512
DEFAULT_MAX_ROWS = 2_000_000
# The user's features in requests of one user, the long histories among them. The first six
# are the candidate's.
USER_FEATURES = range(6, 26)


def dlrm_v2(
    max_rows: int = DEFAULT_MAX_ROWS,
    ids: IdDistribution = IdDistribution.ZIPF,
    precision: Precision = Precision.BF16,
) -> Workload:
    """The model, with tables cut to `max_rows`."""
    rows = tuple(min(count, max_rows) for count in ROWS)
    return Workload(
        "dlrm-v2", rows, DIM, IDS_OF_A_BAG, _dcn, DENSE_WIDTH, distribution=ids, precision=precision
    )


def _dcn() -> nn.Module:
    return DCNv2(
        dense_width=DENSE_WIDTH,
        feature_dims=[DIM] * len(ROWS),
        bottom=BOTTOM,
        top=TOP,
        cross_layers=CROSS_LAYERS,
        cross_rank=CROSS_RANK,
    )


def one_user(request: Inputs, *, expanded: bool) -> Inputs:
    """The request with its first sample's user for all samples, repeated B times if `expanded`."""
    samples = len(request[DENSE]) if expanded else 1
    own = {f"C{number}" for number in USER_FEATURES}
    return {
        name: np.repeat(array[:1], samples, axis=0) if name in own else array
        for name, array in request.items()
    }


def ids_of(request: Inputs) -> list[NDArray[np.int64]]:
    """Ids of each feature."""
    return [array for name, array in request.items() if name != DENSE]
