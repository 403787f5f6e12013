"""Precisions of a tower's matrix products."""

from enum import StrEnum


class Precision(StrEnum):
    """The precision of a tower's matrix products; the last layers are always fp32.

    A tf32 tower is stored as fp32. GPUs compute its inner products from factors rounded to TF32,
    CPUs in fp32.
    """

    FP32 = "fp32"
    TF32 = "tf32"
    BF16 = "bf16"
    FP16 = "fp16"
    INT8 = "int8"
