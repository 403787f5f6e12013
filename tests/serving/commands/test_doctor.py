import pytest

from kernels.machine import Feature, Machine, limited_machine
from kernels.product import product_dtypes
from serving.commands import doctor
from serving.commands.doctor import Finding, Verdict, examine
from sharded_infer.towers import host_products

WITH_BF16 = Feature.AVX2 | Feature.AVX512 | Feature.AVX512_VNNI | Feature.BF16
LIMIT = {"SHARDED_INFER_MAX_INSTRUCTION_SET": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}

pytestmark = pytest.mark.skipif(
    not product_dtypes(), reason="the package was built without a compiler"
)


def findings(here: Machine, monkeypatch: pytest.MonkeyPatch) -> dict[str, Finding]:
    monkeypatch.setattr(doctor, "machine", lambda: here)
    exact = bool(here.onednn & Feature.AVX512_VNNI)
    monkeypatch.setattr(host_products, "has_exact_int8", lambda: exact)
    return {finding.check: finding for finding in examine([])}


def test_it_names_the_class_the_features_and_the_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    found = findings(limited_machine("x86_64", WITH_BF16, LIMIT), monkeypatch)
    assert found["cpu"] == Finding(
        "cpu",
        Verdict.OK,
        "AVX2 (SHARDED_INFER_MAX_INSTRUCTION_SET=avx2, ONEDNN_MAX_CPU_ISA=AVX2); features of the "
        "processor: avx2, avx512, avx512_vnni, bf16",
    )


@pytest.mark.parametrize(
    ("features", "products"),
    [
        (Feature(0), "fp32 by oneDNN, int8 and bf16 and fp16 towers run in fp32"),
        (
            Feature.AVX2,
            "fp32 by ours (avx2), int8 by ours (avx2) where that is timed faster than fp32, "
            "bf16 and fp16 towers run in fp32",
        ),
        (
            WITH_BF16,
            "fp32 by ours (avx512), int8 by ours (avx512), bf16 by ours (avx512), "
            "fp16 towers run in fp32",
        ),
    ],
)
def test_it_says_which_products_run(
    features: Feature, products: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = findings(limited_machine("x86_64", features, {}), monkeypatch)
    assert found["products"].detail == products


def test_a_processor_without_avx2_works_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    cpu = findings(limited_machine("x86_64", Feature(0), {}), monkeypatch)["cpu"]
    assert cpu.verdict is Verdict.NOTE
    assert "It has no AVX2: everything works, slowly, with the baseline's kernels." in cpu.detail
    assert cpu.detail.startswith("BASELINE; features of the processor: none")
    arm = findings(limited_machine("aarch64", Feature(0), {}), monkeypatch)["cpu"]
    assert arm.verdict is Verdict.OK and "64-bit ARM" in arm.detail
