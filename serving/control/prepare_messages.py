"""Messages of prepare calls: a request's user as a predict call without candidates."""

from collections.abc import Mapping, Sequence
from typing import Any

from sharded_infer.errors import RequestError
from sharded_infer.specs.model_spec import ModelSpec
from sharded_infer.v1.predictor_pb2 import DenseInput, Inputs, PredictRequest, SparseFeature


def user_message(request: PredictRequest, spec: ModelSpec) -> bytes:
    """A serialized PredictRequest of one candidate, whose own features have no ids.

    Raises RequestError if an input of the request is none of the user's.
    """
    of_users = set(spec.tower.user_inputs)
    for name in spec.tower.user_inputs:
        if name in spec.sequences:
            of_users.update(spec.sequences[name].members)
    sent = [one.name for one in request.user.sparse] + [one.name for one in request.user.dense]
    for name in sent:
        if name not in of_users:
            raise RequestError(
                f"input {name!r}: expected the user's inputs, {', '.join(sorted(of_users))}"
            )
    candidates = Inputs(
        dense=[
            DenseInput(name=name, values=[0.0] * width)
            for name, width in spec.dense.inputs.items()
            if name not in of_users
        ]
    )
    for name, sequence in spec.sequences.items():
        if name not in of_users and sequence.shortest:
            count = sequence.shortest
            candidates.sparse.extend(
                SparseFeature(name=feature, long_ids=[0] * count, lengths=[count])
                for feature in sequence.features
            )
            candidates.dense.extend(
                DenseInput(name=dense, values=[0.0] * count * width, lengths=[count])
                for dense, width in sequence.dense.items()
            )
    message = PredictRequest(model=spec.name, user=request.user, candidates=candidates)
    return message.SerializeToString()


def request_of_json(document: Mapping[str, Any], model: str, version: str) -> PredictRequest:
    """A request from the JSON of `ModelInfer`, whose inputs are the user's.

    Raises RequestError for malformed inputs.
    """
    inputs = document.get("inputs")
    if not isinstance(inputs, list):
        raise RequestError("inputs: expected a list of inputs")
    request = PredictRequest(model=model, version=version)
    for one in inputs:
        if not isinstance(one, dict) or not isinstance(one.get("name"), str):
            raise RequestError("inputs: expected an object with a name, datatype and data for each")
        name, numbers = one["name"], _flat(one.get("data"))
        try:
            if one.get("datatype") == "BYTES":
                strings = [text.encode() for text in numbers]
                request.user.sparse.add(
                    name=name, strings=b"".join(strings), string_lengths=map(len, strings)
                )
            elif str(one.get("datatype")).startswith("FP"):
                request.user.dense.add(name=name, values=numbers)
            else:
                request.user.sparse.add(name=name, long_ids=numbers)
        except (AttributeError, TypeError, ValueError) as error:
            raise RequestError(f"input {name!r}: {error}") from error
    return request


def _flat(data: object) -> list[Any]:
    if not isinstance(data, Sequence) or isinstance(data, str):
        raise RequestError("inputs: expected data in a list")
    if data and isinstance(data[0], list):
        return [number for row in data for number in _flat(row)]
    return list(data)
