import json

import pytest

from sharded_infer.errors import ArtifactError, InputError, NotFoundError
from sharded_infer.repositories.labels import Labels, dump_labels, parse_labels
from sharded_infer.repositories.promotion.record import Promotion


def test_a_label_remembers_where_it_pointed_and_goes_further_back_each_time() -> None:
    labels = Labels().moved("stable", 1).moved("stable", 3).moved("stable", 2)
    assert labels.versions == {"stable": 2} and labels.history["stable"] == (3, 1)
    # Versions that are gone are skipped.
    assert labels.before("stable", [1, 2]) == 1
    for version in (3, 1):
        labels = labels.moved_back("stable", labels.before("stable", [1, 2, 3]))
        assert labels.versions["stable"] == version
    with pytest.raises(NotFoundError, match="no version before 1"):
        labels.before("stable", [1, 2, 3])
    # Without a history it is the next lower one.
    assert Labels({"stable": 5}).before("stable", [1, 2, 4, 5, 6]) == 4


def test_no_label_moves_to_a_version_that_is_being_removed() -> None:
    with pytest.raises(NotFoundError, match="version 2 is being removed"):
        Labels(removing=(2,)).moved("stable", 2)


@pytest.mark.parametrize(
    "name",
    ["", "3", "1st", "a b", "ä", "a/b", "..", "history", "removing", "weights", "promotion",
     "ended", "latest", "a" * 65],
)  # fmt: skip
def test_what_could_be_mistaken_for_something_else_is_no_label(name: str) -> None:
    with pytest.raises(InputError, match="label|reserved"):
        Labels().moved(name, 1)


def test_what_is_written_is_read_back_and_labels_stand_at_the_top() -> None:
    labels = Labels().moved("stable", 1).moved("stable", 2).moved("canary", 3)
    text = dump_labels(labels)
    assert b'"stable": 2' in text and b'"canary": 3' in text
    read = parse_labels(text, "labels.json")
    assert read.versions == labels.versions
    assert read.history["stable"] == (1,)
    assert dump_labels(read) == text


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b'{"stable": "3"}',
        b'{"stable": 0}',
        b'{"7": 3}',
        b'{"history": []}',
        b'{"history": {"stable": 3}}',
        b'{"removing": 3}',
        b'{"weights": [3]}',
        b'{"stable": 1, "weights": [{"stable": 0}]}',
        b'{"stable": 1, "weights": [{"canary": 1}]}',
        b'{"promotion": 3}',
        b'{"ended": {"canary": [{"version": 0, "at": 1.0, "reason": "x"}]}}',
        b'{"ended": {"canary": [{"version": 1, "at": NaN, "reason": "x"}]}}',
        b'{"stable": ' + b"[" * 10**5,
    ],
)
def test_what_are_no_labels_is_refused_by_place(text: bytes) -> None:
    with pytest.raises(ArtifactError, match=r"small/labels.json: not a file of labels"):
        parse_labels(text, "small/labels.json")


def test_weights_are_set_together_remembered_and_read_back() -> None:
    labels = Labels({"stable": 1, "canary": 2, "next": 3})
    labels = labels.weighted({"stable": 95, "canary": 5}).weighted({"stable": 90, "canary": 10})
    assert labels.weights == {"stable": 90, "canary": 10}
    assert labels.past_weights == ({"stable": 95, "canary": 5},)
    assert labels.weighted({"canary": 10, "stable": 90}) is labels
    assert labels.without("canary").weights == {"stable": 90}
    for canary in range(1, 30):
        labels = labels.weighted({"stable": 100 - canary, "canary": canary})
    read = parse_labels(dump_labels(labels), "labels.json")
    assert (read.weights, read.past_weights) == (labels.weights, labels.past_weights)
    assert len(read.past_weights) == 16
    assert b"weights" not in dump_labels(Labels({"stable": 1}))


def test_cleared_weights_leave_a_file_that_releases_before_read() -> None:
    labels = Labels({"stable": 1}).moved("stable", 2)
    assert dump_labels(labels.weighted({"stable": 1}).weighted({})) == dump_labels(labels)


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ({"beta": 1}, "no label 'beta'; there are stable"),
        ({"stable": 0}, "label 'stable': expected a weight from 1 to 1,000,000, got 0"),
        ({"stable": 10**6 + 1}, "got 1000001"),
        ({f"l{at}": 1 for at in range(9)}, "weights of 8 labels at most, got 9"),
    ],
)
def test_weights_that_make_no_sense_are_refused(weights: dict[str, int], words: str) -> None:
    with pytest.raises((InputError, NotFoundError), match=words):
        Labels({"stable": 1}).weighted(weights)


LABELS = Labels({"stable": 3, "canary": 4})
PROMOTION = Promotion("canary", "stable", 4, 3, (1, 5, 25), 1, 50.0, 600.0, "host/1/a", 100.0)


def test_a_promotion_sets_the_weights_of_its_step_and_is_read_back() -> None:
    labels = LABELS.promoting(PROMOTION)
    assert labels.weights == {"canary": 5, "stable": 95}
    assert parse_labels(dump_labels(labels), "labels.json") == labels


def test_the_weights_of_an_expired_promotion_leave_the_target_all() -> None:
    labels = LABELS.promoting(PROMOTION)
    assert labels.weights_at(100.0) == {"canary": 5, "stable": 95}
    assert labels.weights_at(100.1) == {"stable": 100}
    assert LABELS.weighted({"canary": 5}).weights_at(100.1) == {"canary": 5}


def test_a_promotion_that_is_taken_back_leaves_its_reason() -> None:
    labels = LABELS.promoting(PROMOTION)
    for number in range(20):
        labels = labels.taken_back(f"reason {number}", 70.0).promoting(PROMOTION)
    labels = labels.taken_back("p99 1.8 x stable's", 80.0)
    assert (labels.promotion, labels.weights) == (None, {"stable": 100})
    reasons = [one.reason for one in labels.ended["canary"]]
    assert reasons[:2] == ["p99 1.8 x stable's", "reason 19"] and len(reasons) == 16
    assert labels.ended["canary"][0].version == 4
    assert parse_labels(dump_labels(labels), "labels.json") == labels
    assert "canary" not in labels.without("canary").ended


def test_who_moves_a_label_of_a_promotion_or_sets_weights_ends_it() -> None:
    labels = LABELS.promoting(PROMOTION)
    for moved in (labels.moved("canary", 5), labels.moved("stable", 2)):
        assert (moved.promotion, moved.weights) == (None, {"stable": 100})
    assert labels.weighted(labels.weights).promotion is None
    assert labels.without("canary").promotion is None
    assert labels.moved("next", 5).without("next").promotion is PROMOTION


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"steps": [5, 1]}, "steps: expected ascending percents"),
        ({"steps": [1, 100]}, "promotion.steps.1: Input should be less than 100"),
        ({"steps": []}, "promotion.steps"),
        ({"step": 3}, "step: expected 0 to 2, got 3"),
        ({"step": 0}, "expected the labels and weights of the file"),
        ({"version": 9}, "expected the labels and weights of the file"),
        ({"target": "canary"}, "expected another label"),
        ({"until": "never"}, "promotion.until"),
        ({"unknown": 1}, "promotion.unknown"),
    ],
)
def test_a_promotion_that_makes_no_sense_is_refused(change: dict[str, object], words: str) -> None:
    fields = json.loads(dump_labels(LABELS.promoting(PROMOTION)))
    fields["promotion"] |= change
    with pytest.raises(ArtifactError, match=words) as raised:
        parse_labels(json.dumps(fields).encode(), "labels.json")
    assert "\n" not in str(raised.value)
