import re
from pathlib import Path

import pytest

from serving.demo.sequences.ratings import read_ratings
from sharded_infer.errors import InputError

DAT = "2::7::5::30\n1::9::3::20\n1::8::4::10\n2::6::1::30\n"
CSV = "userId,movieId,rating,timestamp\n2,7,5.0,30\n1,9,3,20\n1,8,4.0,10\n2,6,1.0,30\n"


@pytest.mark.parametrize("text", [DAT, CSV, CSV.partition("\n")[2], DAT.replace("\n", "\r\n")])
def test_ratings_are_in_order_of_user_and_time_and_within_a_second_of_the_file(
    tmp_path: Path, text: str
) -> None:
    path = tmp_path / "ratings"
    path.write_text(text, newline="")
    log = read_ratings(path, 100)
    assert log.users.tolist() == [1, 1, 2, 2]
    assert log.items.tolist() == [8, 9, 7, 6]
    assert log.actions.tolist() == [7, 5, 9, 1]
    assert log.times.tolist() == [10, 20, 30, 30]


def test_every_half_of_a_rating_has_a_number(tmp_path: Path) -> None:
    path = tmp_path / "ratings.csv"
    path.write_text("".join(f"1,1,{half / 2},{half}\n" for half in range(1, 11)))
    assert read_ratings(path, 100).actions.tolist() == list(range(10))


def test_a_limit_counts_ratings_and_not_the_line_of_names(tmp_path: Path) -> None:
    path = tmp_path / "ratings.csv"
    path.write_text(CSV)
    assert read_ratings(path, 2).items.tolist() == [9, 7]
    assert read_ratings(path, 99).items.size == 4


@pytest.mark.parametrize(
    "line",
    [
        "1::2::0::3",
        "1::2::5.5::3",
        "1::2::4.3::3",
        "1::2::nan::3",
        "1::2::4",
        "1::2::4::3::5",
        "a::2::4::3",
        "-1::2::4::3",
        "1,2,4,3",
        "1::2::4::1234567890123456789",
        "",
        "userId,movieId,rating,timestamp",
    ],
)
def test_a_line_of_another_form_is_refused_with_its_number(tmp_path: Path, line: str) -> None:
    path = tmp_path / "ratings.dat"
    path.write_text(f"1::2::3::4\n{line}\n")
    with pytest.raises(InputError, match=f"ratings.dat, line 2: .*{re.escape(repr(line))}"):
        read_ratings(path, 100)


def test_a_file_that_is_absent_or_without_ratings_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot read ratings .*absent"):
        read_ratings(tmp_path / "absent", 100)
    empty = tmp_path / "empty.csv"
    for text in ("", CSV.partition("\n")[0] + "\n"):
        empty.write_text(text)
        with pytest.raises(InputError, match=r"empty.csv has no ratings"):
            read_ratings(empty, 100)
