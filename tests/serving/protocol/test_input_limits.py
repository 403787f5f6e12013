import numpy as np
import pytest

from serving.protocol.input_limits import InputLimits
from serving.protocol.readers.input_reader import Backend, InputReader
from serving.protocol.readers.native_reader import NativeReader
from sharded_infer.errors import RequestError, RequestTooLargeError
from sharded_infer.specs.model_spec import DenseSpec, ModelSpec, ServingSpec, TableSpec, TowerSpec
from tests.support.servers import infer_request

BACKENDS: tuple[Backend, ...] = ("portable", "native")


def decode(
    serving: ServingSpec = ServingSpec(),  # noqa: B008 - frozen
    limits: InputLimits = InputLimits(),  # noqa: B008 - frozen
    **inputs: object,
) -> None:
    arrays = {
        "dense": np.zeros((2, 2), np.float32),
        "user": np.zeros((2, 3), np.int64),
        "item": np.zeros((2, 1), np.int64),
        **inputs,
    }
    tables = (TableSpec("user", 50, 8), TableSpec("item", 50, 8))
    dense = DenseSpec({"dense": 2})
    model = ModelSpec("small", tables, dense=dense, tower=TowerSpec(), serving=serving)
    reader = InputReader(model, max_batch=8, limits=limits)
    reader.read_message(infer_request(arrays).SerializeToString())


def test_a_model_may_take_what_is_no_number() -> None:
    dense = np.array([[0, np.nan], [np.inf, 0]], np.float32)
    decode(ServingSpec(non_finite="pass"), dense=dense)
    with pytest.raises(
        RequestError, match=r"'dense', sample 0: expected finite .* nan in column 1"
    ):
        decode(dense=dense)


def test_the_feature_whose_weights_are_no_numbers_is_named() -> None:
    weights = np.array([[1], [-np.inf]], np.float32)
    with pytest.raises(RequestError, match="weights of 'item': expected finite numbers, got -inf"):
        decode(**{"item.weights": weights})


def test_as_many_ids_as_allowed_are_taken_and_one_more_is_not() -> None:
    decode(limits=InputLimits(max_ids=8))
    with pytest.raises(RequestTooLargeError, match="ids: expected at most 7, got 8"):
        decode(limits=InputLimits(max_ids=7))


def test_an_id_of_a_feature_of_two_tables_counts_in_both() -> None:
    tables = (
        TableSpec("gmf", 9, 1, features=("user",)),
        TableSpec("mlp", 9, 1, features=("user",)),
    )
    model = ModelSpec("m", tables)
    at_once = {
        "sparse.values": np.zeros(6, np.int64),
        "sparse.lengths": np.array([[3, 3]], np.int32),
    }
    for inputs in ({"user": np.zeros((2, 3), np.int64)}, at_once):
        message = infer_request(inputs).SerializeToString()
        enough = InputLimits(max_ids=12)
        found = InputReader(model, max_batch=8, limits=enough).read_message(message)
        assert found.groups[0].lengths.tolist() == [[3, 3], [3, 3]]
        tight = InputLimits(max_ids=11)
        for backend in BACKENDS:
            reader = InputReader(model, max_batch=8, limits=tight, backend=backend)
            with pytest.raises(RequestTooLargeError, match="expected at most 11, got 12"):
                reader.read_message(message)


def test_compiled_code_reads_no_ids_or_inputs_beyond_the_limits() -> None:
    tables = tuple(TableSpec(f"t{n}", 9, 1, features=("user",)) for n in range(3))
    limits = InputLimits(max_ids=17, max_inputs=2)
    reader = NativeReader(ModelSpec("m", tables), max_batch=8, limits=limits)
    few, many = np.zeros((1, 5), np.int64), np.zeros((1, 6), np.int64)
    weighted = {"user": few, "user.weights": np.ones((1, 5), np.float32)}
    three = {**weighted, "user.lengths": np.array([5])}
    for inputs, is_read in (
        ({"user": few}, True),
        ({"user": many}, False),
        (weighted, True),
        (three, False),
    ):
        found = reader.read_message(infer_request(inputs).SerializeToString())
        assert (found is not None) == is_read


def test_as_many_inputs_as_allowed_are_taken_and_one_more_is_not() -> None:
    decode(limits=InputLimits(max_inputs=3))
    with pytest.raises(RequestTooLargeError, match="inputs: expected at most 2, got 3"):
        decode(limits=InputLimits(max_inputs=2))
