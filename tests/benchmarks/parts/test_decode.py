"""`benchmarks decode`, as users run it."""

import json
from pathlib import Path

from tests.benchmarks.forked import run_benchmark


def test_it_measures_both_paths_beside_protobuf_and_a_plain_loop(tmp_path: Path) -> None:
    file = tmp_path / "decode.json"
    done = run_benchmark("decode", "--inputs", 5, "--batch", 3, "--json", file)
    assert done.returncode == 0, done.stderr
    fields = json.loads(file.read_text())
    assert (fields["inputs"], fields["batch"]) == (5, 3)
    cases = [(m["request"], m["batch"]) for m in fields["measurements"]]
    assert cases == [
        ("5 ragged inputs", 3),
        *(("26 features of 3 ids", batch) for batch in (1, 16, 270)),
    ]
    for one in fields["measurements"]:
        assert min(one["portable"], one["protobuf"], one["plain_loop"], one["http"]) > 0
        assert one["native"] > 0
    assert fields["portable_us"] == fields["measurements"][0]["portable"]


def test_a_file_that_cannot_be_written_is_refused_before_the_work(tmp_path: Path) -> None:
    done = run_benchmark("decode", "--json", tmp_path / "none" / "decode.json")
    assert done.returncode == 1
    assert "cannot be written: expected a file in an existing folder" in done.stderr
