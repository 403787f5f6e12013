"""Precisions of a tower's matrix products."""

from enum import StrEnum


class Precision(StrEnum):
    """How a tower's matrix products are computed; the last layers are fp32 in all of them.

    A tf32 tower is stored as an fp32 one. CUDA devices compute its inner products from factors
    rounded to TF32, processors in fp32.
    """

    FP32 = "fp32"
    TF32 = "tf32"
    BF16 = "bf16"
    FP16 = "fp16"
    INT8 = "int8"
