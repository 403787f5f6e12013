from pathlib import Path

import numpy as np
import pytest

from serving.protocol.readers.input_reader import InputReader
from serving.protocol.readers.unknown_ids import Cells
from serving.status import Status, StatusCode
from tests.serving.inference.test_predict_calls import Place, place_of
from tests.support.raw_ids import Arrays, RawModel, publish_raw, raw_request
from tests.support.servers import infer_request
from tests.support.wire import ask


@pytest.fixture
def raw(tmp_path: Path) -> RawModel:
    return publish_raw(tmp_path, topologies=("cpu:1",))


@pytest.fixture
def place(raw: RawModel) -> Place:
    return place_of(raw.path.parents[1], "raw")


def message_of(inputs: Arrays, *, reports_unknown: bool = False) -> bytes:
    request = infer_request(inputs, model="raw")
    if reports_unknown:
        request.parameters["unknown_ids"].bool_param = True
    return bytes(request.SerializeToString())


def counts_of(place: Place) -> Cells:
    return place.store.get("raw").reader.unknown_ids


def test_calls_with_raw_ids_are_read_and_counted_as_by_python(raw: RawModel, place: Place) -> None:
    sent = [message_of(raw_request(raw, 1 + seed % 5, seed)[0]) for seed in range(12)]
    sent += [message_of(raw_request(raw, 4, 3, shared=("clicked", "shop"))[0])]
    sent += [message_of(raw_request(raw, 4, 4, weighted=("bought", "ad"))[0])]
    sent += [message_of(raw_request(raw, 5, seed)[0], reports_unknown=True) for seed in range(4)]
    model = place.store.get("raw").model
    reader = InputReader(model.spec, max_batch=9, backend="portable", id_maps=model.id_maps)
    for one in sent:
        assert place.ask(one) == [ask(place.other, one)]
        reader.read_message(one)
    assert counts_of(place).tolist() == reader.unknown_ids.tolist()
    assert reader.unknown_ids.sum() > 50
    assert all(isinstance(answer, bytes) for answer in place.ask(*sent[:12]))


def test_calls_that_are_left_are_counted_by_who_reads_them(raw: RawModel, place: Place) -> None:
    good, _ = raw_request(raw, 2, 1, weighted=("bought",))
    unknown = {**good, "user_id": np.array([4]), "user_id.lengths": np.array([0, 1])}
    spoilt = {**good, "age": np.full((2, 1), np.nan, np.float32)}
    for inputs, words in ((unknown, "id 4 is not in the id map of table 'user'"), (spoilt, "nan")):
        message = message_of(inputs)
        assert place.wire.take(place.take, (message,))[1] == [0]
        refusal = ask(place.other, message)
        assert isinstance(refusal, Status) and refusal.code is StatusCode.INVALID_ARGUMENT
        assert words in refusal.message.lower()
    assert not counts_of(place).any()
