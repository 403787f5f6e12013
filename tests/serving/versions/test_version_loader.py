import logging
from pathlib import Path

import pytest
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
from sharded_infer.towers.host_products import ProductsOption
from tests.support.servers import MODEL, Ranker


@pytest.fixture(autouse=True)
def _all_levels(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="sharded_infer")


def said(caplog: pytest.LogCaptureFixture, words: str) -> logging.LogRecord:
    (found,) = (record for record in caplog.records if words in record.getMessage())
    return found


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


def test_a_load_says_what_it_takes_what_there_is_and_which_pages_tables_have(
    ranker: Ranker, caplog: pytest.LogCaptureFixture
) -> None:
    load(ranker.repository, TableMemory.AUTO)
    taken = said(caplog, "are available").getMessage()
    assert taken.startswith(f"{MODEL} version 1 takes ") and "its tables" in taken
    pages = said(caplog, "its tables are")
    assert pages.levelno == logging.INFO
    assert "version 1: its tables are mapped: 0 B in 2 MiB pages, " in pages.getMessage()


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
    warned = said(caplog, "are mapped, but 1.00 kB of memory are available")
    assert warned.levelno == logging.WARNING


def test_a_limit_on_the_address_space_is_named(
    ranker: Ranker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving.versions.version_loader, "address_space_left", lambda: 1000)
    with pytest.raises(CapacityError, match=r"1.00 kB are left .* \(ulimit -v\)"):
        load(ranker.repository, TableMemory.MAP)


def test_tables_that_should_lie_in_huge_pages_and_do_not_are_warned_of(
    ranker: Ranker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(serving.versions.version_loader, "HUGE_PAGE_BYTES", 1)
    monkeypatch.setattr(Model, "huge_page_bytes", lambda _: 0)
    load(ranker.repository, TableMemory.HUGE)
    copied = said(caplog, "its tables are copied")
    assert copied.levelno == logging.WARNING and "/sys/kernel/mm" in copied.getMessage()


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
        load(tmp_path, products=option, metrics=metrics)
        assert vars(said(caplog, "loaded "))["products"].split()[0] == running
        warned = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
        slow = (
            "model ranker version 1: published in bf16, runs in fp32 here (no bf16 products on "
            "AVX2); published in int8 it may run faster on this machine"
        )
        assert warned == ([slow] if option is ProductsOption.AUTO else [])
        page = generate_latest(metrics.registry).decode()
        (line,) = (x for x in page.splitlines() if x.startswith("sharded_infer_tower_precision"))
        labels = f'model="ranker",published="bf16",running="{running}",version="1"'
        assert line == f"sharded_infer_tower_precision_info{{{labels}}} 1.0"
