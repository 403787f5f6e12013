import pytest

from kernels.wording import counted, did_you_mean, listed, nearest


def test_a_count_has_the_noun_that_fits_it() -> None:
    assert [counted(n, "sample") for n in (0, 1, 2)] == ["0 samples", "1 sample", "2 samples"]
    assert counted(12345, "row", ",") == "12,345 rows"
    assert [counted(n, "batch", plural="batches") for n in (1, 3)] == ["1 batch", "3 batches"]
    assert [listed("abcdefghij"[:n]) for n in (0, 2)] == ["none", "a, b"]
    assert listed("abcdefghij") == "a, b, c, d, e, f, g, h and 2 more"


@pytest.mark.parametrize(
    ("word", "known", "meant"),
    [
        ("usr", ["user", "item"], "user"),
        ("histroy", ["history", "brand"], "history"),
        ("USER", ["user", "item"], "user"),
        ("item-id", ["item_id", "item"], "item_id"),
        ("user_id", ["user", "item"], "user"),
        ("max_diff", ["max_score_diff", "max_auc_drop"], "max_score_diff"),
        ("label.clik", ["label.click", "label.buy"], "label.click"),
    ],
)
def test_a_misspelt_name_is_recognised(word: str, known: list[str], meant: str) -> None:
    assert nearest(word, known) == meant
    assert did_you_mean(word, known) == f"; did you mean {meant!r}?"


@pytest.mark.parametrize(
    ("word", "known"),
    [
        ("user", ["user"]),  # the word itself
        ("country", ["count", "user"]),
        ("history_item", ["history_user", "brand"]),
        ("age", ["ads", "user"]),
        ("C27", [f"C{n}" for n in range(1, 27)]),  # another number is another name
        ("item", ["item_brand", "item_price"]),  # either
        ("", ["user"]),
        ("x" * 1_000_000, ["x" * 200]),
    ],
)
def test_nothing_is_suggested_that_is_far_off_or_as_good_as_another(
    word: str, known: list[str]
) -> None:
    assert nearest(word, known) is None and did_you_mean(word, known) == ""
