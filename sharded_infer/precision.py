"""Precisions of a tower's matrix products."""

from enum import StrEnum


class Precision(StrEnum):
    """How a tower's matrix products are computed; the last layers are fp32 in all of them."""

    FP32 = "fp32"
    BF16 = "bf16"
    INT8 = "int8"
