import pytest

from sharded_infer.errors import SpecError
from sharded_infer.zoo.bst import BST
from sharded_infer.zoo.din import DIN
from sharded_infer.zoo.history import SequenceSizes
from sharded_infer.zoo.hstu import HSTU
from sharded_infer.zoo.registry import AGE, build_tower
from sharded_infer.zoo.sasrec import SASRec

OPTIONS: dict[str, dict[str, object]] = {
    "din": {"attention": 6, "top": [7, 1]},
    "sasrec": {"blocks": 2, "heads": 2},
    "bst": {"heads": 2, "time_buckets": 40, "top": [7, 1]},
    "hstu": {"layers": 2, "heads": 2, "time_buckets": 40, "top": [7, 1]},
    "dlrm": {"bottom": [8], "top": [1]},
}


@pytest.mark.parametrize(
    ("architecture", "feature_dims", "sizes", "options", "message"),
    [
        ("din", (), SequenceSizes((8,), 9), {}, "needs a pooled feature, the candidate"),
        ("din", (8,), SequenceSizes((), 9), {}, "got 1 pooled features and 0 in the history"),
        ("din", (8,), SequenceSizes((4, 8), 9), {}, "has dim 8, the history's first feature 4"),
        ("din", (8,), SequenceSizes((8,), 9), {"top": [7]}, r"must end with 1, got \[7\]"),
        ("sasrec", (8, 8), SequenceSizes((8,), 9), {}, "one pooled feature, the candidate, got 2"),
        ("sasrec", (8,), SequenceSizes((8,), 9), {"heads": 3}, "divide the candidate's dim 8"),
        ("bst", (8,), SequenceSizes((8,), 9, {AGE: 1}), {"heads": 5}, "dim 8, got 5"),
        ("bst", (8,), SequenceSizes((8,), 9, {AGE: 1}), {"top": [2]}, r"with 1, got \[2\]"),
        ("hstu", (8,), SequenceSizes((8,), 9, {AGE: 1}), {"heads": 5}, "dim 8, got 5"),
        ("hstu", (8,), SequenceSizes((8,), 9, {AGE: 1}), {"top": [2]}, r"with 1, got \[2\]"),
        ("hstu", (8,), SequenceSizes((8,), 9), {}, r"of 'history' \['age'\], got none"),
        ("hstu", (8,), SequenceSizes((8,), 9, {AGE: 2}), {}, "'age' .* a width of 1, got 2"),
        ("din", (8,), SequenceSizes((8,), 9, {AGE: 1}), {}, r"of 'history' none, got \['age'\]"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(
    architecture: str,
    feature_dims: tuple[int, ...],
    sizes: SequenceSizes,
    options: dict[str, object],
    message: str,
) -> None:
    with pytest.raises(SpecError, match=message):
        build_tower(
            architecture,
            dense_inputs={},
            feature_dims=feature_dims,
            options=OPTIONS[architecture] | options,
            sequences={"history": sizes},
        )


@pytest.mark.parametrize(
    ("architecture", "dense", "sequences", "message"),
    [
        ("din", {"dense": 3}, {}, r"'din' takes the dense inputs none, got \['dense'\]"),
        ("din", {}, {}, r"'din' takes the sequences \['history'\], got none"),
        ("din", {}, {"clicks": SequenceSizes((8,), 9)}, r"\['history'\], got \['clicks'\]"),
        ("dlrm", {"dense": 3}, {"history": SequenceSizes((8,), 9)}, "takes the sequences none"),
    ],
)
def test_a_tower_takes_its_sequences_and_dense_inputs_only(
    architecture: str, dense: dict[str, int], sequences: dict[str, SequenceSizes], message: str
) -> None:
    with pytest.raises(SpecError, match=message):
        build_tower(
            architecture,
            dense_inputs=dense,
            feature_dims=[8],
            options=OPTIONS[architecture],
            sequences=sequences,
        )


def test_a_tower_itself_refuses_sizes_below_one() -> None:
    sizes = SequenceSizes((8,), 9, {AGE: 1})
    with pytest.raises(SpecError, match="DIN's attention must be at least 1, got 0"):
        DIN(feature_dims=[8], history=sizes, attention=0, top=[1])
    with pytest.raises(SpecError, match="SASRec's blocks must be at least 1, got 0"):
        SASRec(feature_dims=[8], history=sizes, blocks=0, heads=1)
    with pytest.raises(SpecError, match="BST's time_buckets must be at least 1, got -1"):
        BST(feature_dims=[8], history=sizes, heads=1, time_buckets=-1, top=[1])
    with pytest.raises(SpecError, match="HSTU's layers must be at least 1, got 0"):
        HSTU(feature_dims=[8], history=sizes, layers=0, heads=1, time_buckets=1, top=[1])
