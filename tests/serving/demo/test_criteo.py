from pathlib import Path

import numpy as np
import pytest

from serving.demo.criteo import (
    CATEGORY_COUNT,
    DENSE_COUNT,
    ClickLog,
    Examples,
    Vocabulary,
    read_clicks,
)
from sharded_infer.errors import InputError


def line(
    label: str = "0",
    integers: dict[int, str] | None = None,
    categories: dict[int, str] | None = None,
) -> str:
    dense = [(integers or {}).get(position, "") for position in range(DENSE_COUNT)]
    named = [(categories or {}).get(position, "") for position in range(CATEGORY_COUNT)]
    return "\t".join([label, *dense, *named])


def log_of(tmp_path: Path, *lines: str) -> ClickLog:
    path = tmp_path / "clicks.tsv"
    path.write_text("\n".join(lines) + "\n")
    return read_clicks(path, 100)


def test_a_line_is_a_label_13_integers_and_26_categories_any_of_which_may_be_empty(
    tmp_path: Path,
) -> None:
    log = log_of(
        tmp_path,
        line("1", {0: "0", 1: "-2", 12: "999999999999999999"}, {0: "68fd1e64", 25: "ffFFffFF"}),
        line("0"),
    )
    assert log.labels.tolist() == [1.0, 0.0] and log.labels.dtype == np.float32
    assert log.dense.shape == (2, 13) and log.dense.dtype == np.int64
    assert log.dense[0, [0, 1, 12]].tolist() == [0, -2, 999999999999999999]
    assert np.flatnonzero(log.dense_present).tolist() == [0, 1, 12]
    assert log.categories.shape == (2, 26)
    assert log.categories[0, [0, 25]].tolist() == [b"68fd1e64", b"ffFFffFF"]
    assert (log.categories != b"").sum() == 2


def test_reading_stops_at_the_limit_and_takes_windows_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "clicks.tsv"
    path.write_bytes((line("1") + "\r\n" + line("0") + "\r\nbroken").encode())
    assert read_clicks(path, 2).labels.tolist() == [1.0, 0.0]
    with pytest.raises(InputError, match="line 3"):
        read_clicks(path, 3)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("", "line 2: expected 40 tab-separated fields, got 1"),
        (line() + "\t", "line 2: expected 40 tab-separated fields, got 41"),
        (line("2"), "line 2, column 1: expected a label, 0 or 1, got '2'"),
        (line(""), "line 2, column 1: expected a label, 0 or 1, got ''"),
        (line("0", {0: "1.5"}), "line 2, column 2: expected an integer .* got '1.5'"),
        (line("0", {12: "1_0"}), "line 2, column 14: expected an integer .* got '1_0'"),
        (line("0", {3: "9" * 19}), "line 2, column 5: expected an integer of at most 18 digits"),
        (line("0", {}, {0: "xyz"}), "line 2, column 15: .* hexadecimal digits .* got 'xyz'"),
        (line("0", {}, {25: "123456789"}), "line 2, column 40: expected at most 8 hexadecimal"),
        (line("0", {}, {1: "\xff"}), r"line 2, column 16: .* got '\\xff'"),
    ],
)
def test_a_bad_line_is_refused_with_its_file_line_column_and_what_was_expected(
    tmp_path: Path, bad: str, message: str
) -> None:
    path = tmp_path / "clicks.tsv"
    path.write_bytes(f"{line()}\n{bad}\n{line()}\n".encode("latin-1"))
    with pytest.raises(InputError, match=f"clicks.tsv, {message}"):
        read_clicks(path, 3)


def test_an_empty_or_absent_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "clicks.tsv"
    with pytest.raises(InputError, match=r"cannot read click log .*clicks.tsv: No such file"):
        read_clicks(path, 3)
    path.touch()
    with pytest.raises(InputError, match=r"clicks.tsv is empty"):
        read_clicks(path, 3)


def test_a_vocabulary_numbers_frequent_values_and_sends_all_others_to_id_0(tmp_path: Path) -> None:
    training = log_of(
        tmp_path, *(line("0", {}, {0: value}) for value in ("b", "a", "b", "a", "c", "", "b"))
    )
    vocabulary = Vocabulary.fit(training, min_count=2)
    assert vocabulary.rows == (3,) + (1,) * 25
    test = log_of(tmp_path, *(line("0", {}, {0: value}) for value in ("a", "", "b", "c", "d")))
    examples = vocabulary.encode(test)
    assert examples.present[:, 0].tolist() == [True, False, True, True, True]
    assert not examples.present[:, 1:].any()
    assert examples.ids[:, 0].tolist() == [1, 0, 2, 0, 0] and examples.ids.dtype == np.int64
    assert not examples.ids[:, 1:].any()
    assert Vocabulary.fit(training, min_count=1).rows[0] == 4


def test_categories_are_told_apart_by_their_digits_as_written(tmp_path: Path) -> None:
    written = ("a", "A", "0a", "0000000a", "", "a")
    log = log_of(tmp_path, *(line("0", {}, {0: value, 25: "b"}) for value in written))
    examples = Vocabulary.fit(log, min_count=1).encode(log, keep_texts=True)
    assert examples.rows == (5,) + (1,) * 24 + (2,)
    assert examples.texts is not None
    texts = [value.encode() for value in written]
    assert examples.texts[:, 0].tolist() == texts and (examples.texts[:, 25] == b"b").all()
    # In the order of their bytes.
    assert examples.ids[:, 0].tolist() == [4, 3, 2, 1, 0, 4]
    part = examples.select(np.array([3, 4, 1]))
    assert part.texts is not None and part.texts[:, 0].tolist() == [texts[3], b"", texts[1]]


def test_dense_values_are_clipped_logarithms_and_zero_when_missing(tmp_path: Path) -> None:
    log = log_of(tmp_path, line("0", {0: "7", 1: "-3", 2: "0"}))
    dense = Vocabulary.fit(log, min_count=1).encode(log).dense
    assert dense.dtype == np.float32
    np.testing.assert_allclose(dense, [[np.log(8.0)] + [0.0] * 12], rtol=1e-6)


def test_selected_examples_come_in_the_order_asked_for() -> None:
    dense = np.arange(39, dtype=np.float32).reshape(3, 13)
    ids = np.array([[1, 0], [0, 5], [6, 7]])
    examples = Examples(np.arange(3, dtype=np.float32), dense, ids, ids > 0, (1000,) * 2)
    picked = examples.select(np.array([2, 1, 2]))
    assert picked.ids.tolist() == [[6, 7], [0, 5], [6, 7]]
    assert picked.present.tolist() == [[True, True], [False, True], [True, True]]
    assert picked.labels.tolist() == [2.0, 1.0, 2.0] and picked.rows == (1000,) * 2
    assert picked.dense.tolist() == dense[[2, 1, 2]].tolist()
    assert examples.select(slice(1, 99)).ids.tolist() == [[0, 5], [6, 7]]
