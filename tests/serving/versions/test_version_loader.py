import logging
from pathlib import Path

import pytest
import torch
from prometheus_client import generate_latest
from torch import Tensor, nn

import serving.versions.version_loader
from kernels.product import product_dtypes
from serving.host.table_copies import TableCopies, shared_copies
from serving.metrics.server_metrics import ServerMetrics
from serving.versions.load_phases import LoadPhases
from serving.versions.loaded_version import ServingOverrides
from serving.versions.memory_fit import needed_bytes
from serving.versions.version_loader import VersionLoader
from sharded_infer.artifacts.table_memory import TableMemory
from sharded_infer.engines.model import Model
from sharded_infer.errors import CapacityError
from sharded_infer.publishing.publication import publish
from sharded_infer.specs.model_spec import ModelSpec, TableSpec, TowerSpec
from sharded_infer.specs.precision import Precision
from sharded_infer.specs.sequence_spec import SequenceSpec
from sharded_infer.towers.host_products import ProductsOption
from tests.support.servers import MODEL, Ranker


def load(
    repository: Path,
    memory: TableMemory = TableMemory.MAP,
    copies: TableCopies | None = None,
    *,
    products: ProductsOption = ProductsOption.AUTO,
    metrics: ServerMetrics | None = None,
) -> LoadPhases:
    metrics = metrics or ServerMetrics()
    metrics.follow(MODEL, slots=3, labels=())
    counters = metrics.releases(MODEL)
    counters.assign(1, set())
    overrides = ServingOverrides(memory=memory, copies=copies, products=products)
    loader = VersionLoader(topology=None, max_batch=4, overrides=overrides)
    phases = LoadPhases("open")
    loader.load(repository / MODEL / "1", counters.version(1), phases=phases)
    return phases


def test_a_load_says_what_it_takes_and_what_there_is(
    ranker: Ranker, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="sharded_infer"):
        load(ranker.repository, TableMemory.MAP)
    (said,) = (r.getMessage() for r in caplog.records if "are available" in r.getMessage())
    assert said.startswith(f"{MODEL} version 1 takes ") and "its tables" in said and "(map)" in said


def test_a_copy_that_cannot_fit_is_refused_with_figures(
    ranker: Ranker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving.versions.version_loader, "available_bytes", lambda: 1000)
    with pytest.raises(CapacityError, match=r"ranker version 1 does not fit: it takes .*1.00 kB"):
        load(ranker.repository, TableMemory.HUGE)


def test_a_copy_that_another_process_made_takes_no_memory(
    ranker: Ranker, monkeypatch: pytest.MonkeyPatch
) -> None:
    if (copies := shared_copies(2)) is None:
        pytest.skip("this kernel cannot share huge pages")
    manifest = ranker.model.artifact.manifest
    needed = needed_bytes(manifest, TableMemory.HUGE, 1)
    monkeypatch.setattr(serving.versions.version_loader, "available_bytes", lambda: needed - 1)
    with pytest.raises(CapacityError, match="does not fit"):
        load(ranker.repository, TableMemory.HUGE, copies)
    files = [ranker.repository / MODEL / "1" / name for name in manifest.table_files]
    held = [copies.copy(file, lambda _: None) for file in files]
    assert "golden" in load(ranker.repository, TableMemory.HUGE, copies).seconds and held


def test_mapped_tables_larger_than_memory_are_served_and_it_is_said(
    ranker: Ranker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(serving.versions.version_loader, "available_bytes", lambda: 1000)
    assert "golden" in load(ranker.repository, TableMemory.MAP).seconds
    (warned,) = (r.getMessage() for r in caplog.records if r.levelno == logging.WARNING)
    assert "are mapped, but 1.00 kB of memory are available" in warned


def test_a_limit_on_the_address_space_is_named(
    ranker: Ranker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving.versions.version_loader, "address_space_left", lambda: 1000)
    with pytest.raises(CapacityError, match=r"1.00 kB are left .* \(ulimit -v\)"):
        load(ranker.repository, TableMemory.MAP)


def test_where_tables_lie_in_huge_pages_nothing_is_to_be_looked_at(
    ranker: Ranker, caplog: pytest.LogCaptureFixture
) -> None:
    """Its tables are smaller than one huge page: small ones are as they should be."""
    with caplog.at_level(logging.INFO, logger="sharded_infer"):
        load(ranker.repository, TableMemory.HUGE)
    (said,) = (r for r in caplog.records if "its tables are copied" in r.getMessage())
    assert said.levelno == logging.INFO and "/sys/" not in said.getMessage()


def test_tables_that_should_lie_in_huge_pages_and_do_not_are_warned_of(
    ranker: Ranker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(serving.versions.version_loader, "HUGE_PAGE_BYTES", 1)
    monkeypatch.setattr(Model, "huge_page_bytes", lambda _: 0)
    load(ranker.repository, TableMemory.HUGE)
    (said,) = (r for r in caplog.records if "its tables are copied" in r.getMessage())
    assert said.levelno == logging.WARNING and "/sys/kernel/mm" in said.getMessage()


def test_auto_maps_tables_and_says_which_pages_they_have(
    ranker: Ranker, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="sharded_infer"):
        load(ranker.repository, TableMemory.AUTO)
    (said,) = (r for r in caplog.records if "its tables are" in r.getMessage())
    assert said.levelno == logging.INFO
    assert "version 1: its tables are mapped: 0 B in 2 MiB pages, " in said.getMessage()


def test_auto_asks_for_no_large_pages_of_tables_that_are_larger_than_memory(
    ranker: Ranker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(serving.versions.version_loader, "available_bytes", lambda: 1000)
    with caplog.at_level(logging.INFO, logger="sharded_infer"):
        load(ranker.repository, TableMemory.AUTO)
    assert any("(map), its tower" in r.getMessage() for r in caplog.records)
    (warned,) = (r.getMessage() for r in caplog.records if r.levelno == logging.WARNING)
    assert "are mapped, but 1.00 kB of memory are available" in warned


class Sum(nn.Module):
    def forward(self, history: Tensor, history_lengths: Tensor) -> Tensor:
        there = torch.arange(history.shape[1]) < history_lengths.unsqueeze(1)
        return torch.sigmoid((history.sum(2) * there).sum(1))


def test_a_load_says_what_a_sample_with_a_history_costs(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # One sample counts as more work than 1: its history counts too.
    spec = ModelSpec(
        MODEL,
        (TableSpec("item", 50, 8, features=("history",)),),
        sequences={"history": SequenceSpec(max_length=40, features=("history",))},
    )
    publish(spec, {"item": nn.Embedding(50, 8)}, Sum(), tmp_path)
    with caplog.at_level(logging.INFO, logger="sharded_infer"):
        load(tmp_path)
    (said,) = (r for r in caplog.records if r.getMessage().startswith("loaded "))
    assert vars(said)["one_sample_ms"] > 0


class Deep(nn.Module):
    """An inner product, whose precision is the tower's, and the last."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 1), nn.Sigmoid())

    def forward(self, embeddings: Tensor) -> Tensor:
        scores: Tensor = self.layers(embeddings).squeeze(1)
        return scores


@pytest.mark.skipif(not product_dtypes(), reason="the package was built without a compiler")
def test_a_load_says_which_products_run_and_warns_once_of_a_precision_that_would_be_faster(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = (TableSpec("item", 50, 8),)
    spec = ModelSpec(MODEL, tables, tower=TowerSpec(precision=Precision.BF16))
    publish(spec, {"item": nn.EmbeddingBag(50, 8, mode="sum")}, Deep(), tmp_path)
    monkeypatch.setenv("SHARDED_INFER_MAX_INSTRUCTION_SET", "avx2")
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", "AVX2")
    for option, running in (
        (ProductsOption.AUTO, "fp32"),
        (ProductsOption.FP32, "fp32"),
        (ProductsOption.PUBLISHED, "bf16"),
    ):
        caplog.clear()
        metrics = ServerMetrics()
        with caplog.at_level(logging.INFO, logger="sharded_infer"):
            load(tmp_path, products=option, metrics=metrics)
        (said,) = (r for r in caplog.records if r.getMessage().startswith("loaded "))
        assert vars(said)["products"].split()[0] == running
        warned = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
        assert warned == (
            [
                "model ranker version 1: published in bf16, runs in fp32 here (no bf16 products on "
                "AVX2); published in int8 it may run faster on this machine"
            ]
            if option is ProductsOption.AUTO
            else []
        )
        page = generate_latest(metrics.registry).decode()
        (line,) = (x for x in page.splitlines() if x.startswith("sharded_infer_tower_precision"))
        labels = f'model="ranker",published="bf16",running="{running}",version="1"'
        assert line == f"sharded_infer_tower_precision_info{{{labels}}} 1.0"
