from dataclasses import replace

import pytest

from kernels.product import product_dtypes
from sharded_infer.repositories.repository import Repository
from sharded_infer.specs.precision import Precision
from sharded_infer.towers import host_products
from tests.support.servers import Command, Ranker


@pytest.mark.skipif(not product_dtypes(), reason="the package was built without a compiler")
@pytest.mark.parametrize(
    ("published", "here"),
    [
        (Precision.FP32, "fp32"),
        (Precision.BF16, "fp32: no bf16 products on AVX2"),
        (Precision.INT8, "int8 or fp32, whichever is timed faster when it is loaded here"),
    ],
)
def test_the_towers_line_says_the_published_precision_and_what_runs(
    ranker: Ranker,
    published: Precision,
    here: str,
    monkeypatch: pytest.MonkeyPatch,
    sharded_infer: Command,
) -> None:
    monkeypatch.setenv("SHARDED_INFER_MAX_INSTRUCTION_SET", "avx2")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    monkeypatch.setattr(host_products, "has_exact_int8", lambda: False)
    artifact = ranker.model.artifact
    tower = replace(artifact.manifest.tower, precision=published)
    changed = replace(artifact, manifest=replace(artifact.manifest, tower=tower))
    monkeypatch.setattr(Repository, "open", lambda *_: changed)
    shown = sharded_infer("inspect", "-r", ranker.repository).out.splitlines()
    assert f"tower {published} (on this machine {here}), outputs score, labels" in shown
