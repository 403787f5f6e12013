"""`benchmarks decode`, as users run it."""

from pathlib import Path

from tests.benchmarks.conftest import Measure
from tests.support.servers import Command


def test_it_measures_both_paths_beside_protobuf_and_a_plain_loop(measure_apart: Measure) -> None:
    _, fields = measure_apart("decode", "--inputs", 5, "--batch", 3)
    assert (fields["inputs"], fields["batch"]) == (5, 3)
    assert [(m["request"], m["batch"]) for m in fields["measurements"]] == [
        ("5 ragged inputs", 3),
        *(("26 features of 3 ids", batch) for batch in (1, 16, 270)),
    ]
    for one in fields["measurements"]:
        ways = ("portable", "native", "protobuf", "plain_loop", "http")
        assert min(one[way] for way in ways) > 0
    assert fields["portable_us"] == fields["measurements"][0]["portable"]


def test_a_file_that_cannot_be_written_is_refused_before_the_work(
    benchmark: Command, tmp_path: Path
) -> None:
    benchmark("decode", "--json", tmp_path / "none" / "decode.json").refused(
        "cannot be written: expected a file in an existing folder"
    )
