"""Precision in which a processor computes a tower's inner products.

A published precision only bounds the error: where the processor has no fast products of it, the
tower runs in fp32, which is at least as exact.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

import torch

from kernels.machine import Feature, Machine, machine
from kernels.product import product_dtypes
from sharded_infer.specs.precision import Precision
from sharded_infer.towers.lowering.int8_packing import has_exact_int8

_WEIGHT_DTYPES: Final = {
    Precision.INT8: torch.int8,
    Precision.BF16: torch.bfloat16,
    Precision.FP16: torch.float16,
}


class ProductsOption(StrEnum):
    """Choice of the products' precision."""

    AUTO = "auto"
    PUBLISHED = "published"
    FP32 = "fp32"


@dataclass(frozen=True, slots=True)
class HostProducts:
    """Published and running precision of a tower's inner products, and a readable reason."""

    published: Precision
    running: Precision
    reason: str

    @property
    def is_raised(self) -> bool:
        """True if a low-precision program runs in fp32; a tf32 one is stored in fp32."""
        stored = (Precision.FP32, Precision.TF32)
        return self.running is Precision.FP32 and self.published not in stored

    @property
    def text(self) -> str:
        """For example `fp32 (published in bf16: no bf16 products on AVX2)`."""
        if self.running is self.published:
            return str(self.running)
        return f"{self.running} (published in {self.published}: {self.reason})"


def choose_products(
    published: Precision, option: ProductsOption, here: Machine | None = None
) -> HostProducts | None:
    """Chooses the precision of a tower's products on a machine, by default this one.

    Returns:
        None if int8 has to be timed against fp32: the processor multiplies bytes as wider words.
    """
    here, option = here or machine(), ProductsOption(option)
    if published is Precision.FP32:
        return HostProducts(published, published, "as published")
    if published is Precision.TF32:
        return HostProducts(published, Precision.FP32, "tf32 is computed on GPUs alone")
    if option is not ProductsOption.AUTO:
        running = Precision.FP32 if option is ProductsOption.FP32 else published
        return HostProducts(published, running, f"--precision {option}")
    if has_products(published, here):
        if published is Precision.INT8 and not _multiplies_bytes(here):
            return None
        return HostProducts(published, published, "as published")
    return HostProducts(published, Precision.FP32, f"no {published} products on {here.class_name}")


def faster_precision(products: HostProducts, here: Machine | None = None) -> Precision | None:
    """A published precision that would be faster on this machine; None if there is none."""
    here = here or machine()
    if products.running is not Precision.FP32:
        return None
    low = (Precision.INT8, Precision.BF16)
    return next((p for p in low if p is not products.published and has_products(p, here)), None)


def are_compiled(precision: Precision) -> bool:
    """True if this project computes products of a precision here, without kernels of oneDNN."""
    dtype = _WEIGHT_DTYPES.get(precision, torch.float32)
    return {dtype, torch.float32} <= product_dtypes()


def has_products(precision: Precision, here: Machine) -> bool:
    """True if products of a low precision are, or may be, faster than fp32's."""
    if precision is Precision.INT8:
        return torch.int8 in product_dtypes(here) or has_exact_int8()
    if precision is Precision.BF16:
        return torch.bfloat16 in product_dtypes(here) or Feature.BF16 in here.onednn
    return Feature.FP16 in here.onednn


def _multiplies_bytes(here: Machine) -> bool:
    """True if one instruction multiplies bytes, which always beats fp32."""
    theirs = here.onednn & (Feature.AVX_VNNI | Feature.AMX_INT8)
    return here.is_arm or bool(theirs) or Feature.AVX512_VNNI in here.ours
