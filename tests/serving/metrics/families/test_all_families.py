import re
import subprocess
import sys

import pytest

from serving.metrics.families.all_families import VERSION_FAMILIES
from serving.metrics.families.family import Family, Kind
from serving.metrics.families.model_families import MODEL_FAMILIES
from serving.metrics.families.server_families import PAGE_FAMILIES, SERVER_FAMILIES
from serving.metrics.families.shadow_families import SHADOW_FAMILIES
from tests.support.fresh_process import CHECKOUT

FAMILIES = (*VERSION_FAMILIES, *SHADOW_FAMILIES, *MODEL_FAMILIES, *SERVER_FAMILIES, *PAGE_FAMILIES)
OTHER_UNITS = re.compile(
    r"_(ms|us|ns|millis\w*|micro\w*|minutes|hours|kb|mb|mib|kib|gib|percent)\b"
)
each_family = pytest.mark.parametrize("family", FAMILIES, ids=[f.name for f in FAMILIES])


@each_family
def test_a_name_has_prometheus_form_and_base_units(family: Family) -> None:
    assert re.fullmatch(r"sharded_infer(_[a-z]+)+", family.name)
    assert not OTHER_UNITS.search(family.name)
    assert not family.name.endswith(("_total", "_count", "_sum", "_bucket", "_created"))
    assert family.full_name.endswith("_total") is (family.kind is Kind.COUNTER)
    timed = re.search(r"\b[Tt]ime\b|\blong\b", family.help) and "Time between" not in family.help
    if timed and family.kind is not Kind.GAUGE and "ratio" not in family.name:
        assert family.name.endswith("seconds"), "a time without its unit"
    if family.help.startswith(("Bytes", "Memory")):
        assert family.name.endswith("bytes")


@each_family
def test_help_and_readers_are_sentences(family: Family) -> None:
    assert (
        re.match(r"[A-Z0-9].*\.$", family.help) and re.match(r"[A-Z].*: .*\.$", family.readers)
    ) or (family.readers.startswith("Alert rules"))
    assert "  " not in family.help + family.readers


def test_boundaries_ascend_and_label_values_are_bounded() -> None:
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)
    for family in FAMILIES:
        assert list(family.boundaries) == sorted(set(family.boundaries))
        assert (family.kind is Kind.HISTOGRAM) is bool(family.boundaries)
        assert len(family.label_values) <= 128


def test_the_document_is_what_is_declared() -> None:
    done = subprocess.run(
        [sys.executable, "docs/generate_metrics.py", "--check"],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    text = (CHECKOUT / "docs" / "metrics.md").read_text()
    assert [f.full_name for f in FAMILIES if f"| `{f.full_name}` |" not in text] == []
