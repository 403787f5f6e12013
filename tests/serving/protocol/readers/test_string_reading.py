import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serving.protocol.readers.native_reader import NativeReader
from tests.support.requests_by_chance import check_same
from tests.support.string_requests import (
    AGE,
    MAPS,
    MAX_BATCH,
    SPEC,
    WORDS,
    Sent,
    message_of,
    native_reader,
    numbers,
    portable_reader,
    raw_id,
    strings,
)

PORTABLE = portable_reader()
FEATURES = ("word", "token", "left", "both", "crossed")


@pytest.fixture(scope="module")
def native() -> NativeReader:
    return native_reader()


@st.composite
def string_inputs(draw: st.DrawFn) -> dict[str, Sent]:
    """Strings or numbers, as flat ids, matrices or bags, with and without weights."""
    batch = draw(st.integers(1, MAX_BATCH))
    word = st.one_of(st.sampled_from(WORDS), st.binary(max_size=40))
    inputs = {"age": AGE}
    for name in FEATURES:
        size = draw(st.sampled_from([1, batch]))
        each = draw(st.integers(0, 3))
        form = draw(st.sampled_from(["absent", "flat", "matrix", "bags", "bags"]))
        if form == "absent":
            continue
        lengths = [1 if form == "flat" else each] * size
        if form == "bags":
            lengths = [draw(st.integers(0, 3)) for _ in lengths]
            inputs[f"{name}.lengths"] = numbers(lengths)
        count = sum(lengths)
        shape = (size, each) if form == "matrix" else (count,)
        if name == "both" or draw(st.integers(0, 3)) == 0:
            inputs[name] = numbers([draw(st.integers(-9, 9)) for _ in range(count)], *shape)
        else:
            inputs[name] = strings([draw(word) for _ in range(count)], *shape)
        if draw(st.booleans()):
            scales = np.random.default_rng(count).random(count, np.float32)
            inputs[f"{name}.weights"] = Sent("FP32", shape, scales.tobytes())
    return dict(draw(st.permutations(list(inputs.items()))))


@settings(deadline=None, max_examples=100)
@given(inputs=string_inputs())
def test_strings_are_read_as_the_portable_path_reads_them(
    native: NativeReader, inputs: dict[str, Sent]
) -> None:
    wanted = PORTABLE.read_message(message_of(inputs))
    found = native.read_message(message_of(inputs))
    assert found is not None
    check_same(found, wanted)


def test_each_word_has_its_row_and_others_are_unknown(native: NativeReader) -> None:
    words = [*WORDS[:-1], b"unknown"]
    asked = {"age": AGE, "word": strings(words), "token": strings(words)}
    found = native.read_message(message_of(asked))
    assert found is not None and found.ids_outside == 3
    group = found.groups[0]
    known = list(range(5))
    # Of its features word, token, and word in `deep`.
    assert group.lengths.sum(1).tolist()[:3] == [5, 6, 5]
    strange = raw_id(SPEC.tables[1], b"unknown") % 2**64
    row = (8, 2)[strange // 2**62 if strange < 2**63 else strange % 2]
    assert group.values.tolist()[:16] == [*known, *known, row, *known]


def test_a_string_of_a_table_without_its_map_becomes_its_hash(native: NativeReader) -> None:
    found = native.read_message(message_of({"age": AGE, "left": strings([b"zz"])}))
    wanted = raw_id(SPEC.tables[3], b"zz")
    assert found is not None and wanted in found.groups[0].values.tolist()
    assert "elsewhere" not in MAPS


@pytest.mark.parametrize(
    "inputs",
    [
        {"plain": strings([b"1"])},
        {"both": strings([b"1"])},
        {"word": numbers([1, 1]), "word.lengths": strings([b"1", b"1"])},
        {"word": strings([b"1"]), "word.weights": strings([b"1"])},
        {"age": strings([b"1"], 1, 1)},
        {"sparse.values": strings([b"1"]), "sparse.lengths": numbers([1, *[0] * 5], 6, 1)},
        {"sparse.values": numbers([1]), "sparse.lengths": strings([b"", *[b"1"] * 5], 6, 1)},
    ],
)
def test_inputs_that_take_no_strings_are_left(
    native: NativeReader, inputs: dict[str, Sent]
) -> None:
    asked = {"age": AGE, **inputs}
    assert native.read_message(message_of(asked)) is None
