import json
from pathlib import Path

import pytest

from tests.support.servers import run


@pytest.mark.parametrize("row_format", ["int8", "bf16"])
def test_it_measures_ours_beside_the_peers_and_the_limit(row_format: str, tmp_path: Path) -> None:
    file = tmp_path / "lookup.json"
    words = ("--rows", 2000, "--seconds", 0.05, "--json", file)
    done = run("bench", "lookup", "--format", row_format, *words)
    assert done.returncode == 0, done.stderr
    fields = json.loads(file.read_text())
    assert fields["format"] == row_format
    cases = {(m["pages"], m["ids"], m["batch"]): m for m in fields["measurements"]}
    assert set(cases) == {
        (pages, ids, batch)
        for pages in ("4 KiB", "2 MiB", "defaults")
        for ids in ("uniform", "zipf")
        for batch in (1, 16, 270)
    }
    for one in cases.values():
        assert one["ours"] > 0 and one["gather_limit"] > 0
        # FBGEMM does not read bf16 rows.
        assert (one["fbgemm"] is None) == (row_format == "bf16")
    chosen = cases["2 MiB", "uniform", 270]
    assert fields["rows_per_second"] == chosen["ours"]
    assert fields["fbgemm_rows_per_second"] == chosen["fbgemm"]
    assert fields["gather_limit_rows_per_second"] == chosen["gather_limit"]
