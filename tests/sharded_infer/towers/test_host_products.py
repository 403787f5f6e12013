import pytest

from kernels.machine import Feature, limited_machine
from kernels.product import product_dtypes
from sharded_infer.specs.precision import Precision
from sharded_infer.towers import host_products
from sharded_infer.towers.host_products import (
    HostProducts,
    ProductsOption,
    choose_products,
    faster_precision,
)

AUTO = ProductsOption.AUTO
FP32, BF16, FP16, INT8 = Precision.FP32, Precision.BF16, Precision.FP16, Precision.INT8
AVX512 = Feature.AVX2 | Feature.AVX512
VNNI = AVX512 | Feature.AVX512_VNNI
WITH_BF16 = VNNI | Feature.BF16
AMX = WITH_BF16 | Feature.AMX_INT8 | Feature.AMX_BF16
BYTES = Feature.AVX_VNNI | Feature.AVX512_VNNI | Feature.AMX_INT8

pytestmark = pytest.mark.skipif(
    not product_dtypes(), reason="the package was built without a compiler"
)


@pytest.mark.parametrize(
    ("architecture", "features", "name", "running", "faster"),
    [
        # Of towers in bf16, fp16 and int8; None: int8 is timed. Then what fp16 had better been.
        ("x86_64", Feature(0), "BASELINE", (FP32, FP32, FP32), None),
        ("x86_64", Feature.AVX2, "AVX2", (FP32, FP32, None), INT8),
        ("x86_64", Feature.AVX2 | Feature.AVX_VNNI, "AVX2", (FP32, FP32, INT8), INT8),
        ("x86_64", AVX512, "AVX-512", (FP32, FP32, None), INT8),
        ("x86_64", VNNI, "AVX-512 VNNI", (FP32, FP32, INT8), INT8),
        ("x86_64", WITH_BF16, "AVX-512 BF16", (BF16, FP32, INT8), INT8),
        ("x86_64", WITH_BF16 | Feature.FP16, "AVX-512 BF16", (BF16, FP16, INT8), None),
        ("x86_64", AMX, "AMX", (BF16, FP32, INT8), INT8),
        ("aarch64", Feature(0), "64-bit ARM", (FP32, FP32, FP32), None),
        ("aarch64", Feature.BF16, "64-bit ARM BF16", (BF16, FP32, FP32), BF16),
    ],
)
def test_a_low_precision_runs_where_the_processor_has_its_products(
    architecture: str,
    features: Feature,
    name: str,
    running: tuple[Precision | None, ...],
    faster: Precision | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    here = limited_machine(architecture, features, {})
    # oneDNN's bytes overflow without such instructions: it is asked on the machine at hand.
    monkeypatch.setattr(host_products, "has_exact_int8", lambda: bool(features & BYTES))
    assert here.class_name == name
    found = [choose_products(one, AUTO, here) for one in (BF16, FP16, INT8)]
    assert tuple(None if one is None else one.running for one in found) == running
    for one in found:
        if one is not None and one.running is not one.published:
            assert one.reason == f"no {one.published} products on {name}"
    fp16 = found[1]
    assert fp16 is not None and faster_precision(fp16, here) is faster


@pytest.mark.parametrize("precision", list(Precision))
def test_an_option_forces_the_precision_and_fp32_is_never_lowered(precision: Precision) -> None:
    here = limited_machine("x86_64", Feature.AVX2, {})
    forced = choose_products(precision, ProductsOption.FP32, here)
    kept = choose_products(precision, ProductsOption.PUBLISHED, here)
    assert forced is not None and forced.running is FP32
    # Processors have no tf32.
    assert kept is not None
    assert kept.running is (FP32 if precision is Precision.TF32 else precision)
    # A program that was published in fp32 keeps the casts of its module.
    assert forced.is_raised is (precision in (BF16, FP16, INT8)) and not kept.is_raised


def test_a_limit_takes_products_away_and_is_named() -> None:
    variables = {"SHARDED_INFER_MAX_INSTRUCTION_SET": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
    here = limited_machine("x86_64", AMX, variables)
    assert here.class_text == (
        "AVX2 (SHARDED_INFER_MAX_INSTRUCTION_SET=avx2, ONEDNN_MAX_CPU_ISA=AVX2)"
    )
    chosen = choose_products(BF16, AUTO, here)
    assert chosen == HostProducts(BF16, FP32, "no bf16 products on AVX2")
    assert chosen.text == "fp32 (published in bf16: no bf16 products on AVX2)"
    # oneDNN has them still, if it is not limited.
    ours = limited_machine("x86_64", AMX, {"SHARDED_INFER_MAX_INSTRUCTION_SET": "avx2"})
    assert choose_products(BF16, AUTO, ours) == HostProducts(BF16, BF16, "as published")
