"""Sizes of MLPerf Inference's DLRM-v2."""

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
