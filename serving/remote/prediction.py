"""Predictions for the command line, also from a running server."""

from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import tritonclient.grpc as triton
from numpy.typing import NDArray
from tritonclient.grpc import model_config_pb2

from kernels.ids.id_hash import StringHash
from serving.protocol.infer_answer import DEFAULT_TABLES
from serving.protocol.wire_strings import STRING_HASH, STRING_HASH_SEED
from serving.protocol.wire_tensors import MAX_LENGTH, SEQUENCE
from serving.remote.caller import ANONYMOUS, Caller
from serving.remote.failed_call import failed_call
from serving.remote.triton_inputs import triton_inputs
from sharded_infer.errors import NotFoundError, ShardedInferError
from sharded_infer.inputs.columns import Columns
from sharded_infer.reports.html.text import visible
from sharded_infer.samples.request import batch_samples
from sharded_infer.specs.id_map_spec import IdMapSpec
from sharded_infer.specs.model_spec import DenseSpec, ModelSpec, TableSpec, TowerSpec
from sharded_infer.specs.sequence_spec import SequenceSpec

_LATEST: Final = "latest"
_READY: Final = "READY"
_FLOATS: Final = model_config_pb2.TYPE_FP32


@dataclass(frozen=True, slots=True)
class Prediction:
    """Scores, fp32 `[B]` or `[B, K]` by output, and tables whose default rows the server took."""

    model: str
    version: int
    scores: dict[str, NDArray[np.float32]]
    default_tables: str = ""

    def fields(self) -> dict[str, object]:
        """The prediction for JSON."""
        scores: object = {name: values.tolist() for name, values in self.scores.items()}
        fields = {"model": self.model, "version": self.version, "scores": scores}
        if self.default_tables:
            fields["default_tables"] = self.default_tables.split(",")
        return fields

    def lines(self) -> Iterator[str]:
        """TSV lines: the outputs' names, then the samples; commas join an output's numbers."""
        yield "\t".join(map(visible, self.scores))
        columns = [values.reshape(len(values), -1) for values in self.scores.values()]
        for row in zip(*columns, strict=True):
            # %.9g distinguishes every fp32 number from its neighbours.
            yield "\t".join(",".join(f"{value:.9g}" for value in cell) for cell in row)


def predict_remote(
    address: str,
    model: str | None,
    version: str | None,
    read: Callable[[Container[str]], Columns],
    *,
    caller: Caller = ANONYMOUS,
) -> Prediction:
    """Score samples as one request to a running server.

    Args:
        address: the server's gRPC address, `host:port`.
        model: None: the only one that is served.
        version: number, label that the server follows, or `latest`, the highest that is ready;
            None: the server's default.
        read: reads the samples, given the inputs whose ids may be strings.

    Raises:
        RequestError: a sample does not fit the model.
        NotFoundError: no model is named, and none or several are served.
        ShardedInferError: the server cannot be reached, or refused the request.
    """
    headers = caller.headers
    with triton.InferenceServerClient(address, creds=caller.channel_credentials()) as client:
        try:
            named = version or ""
            # Only on demand: a token may not cover the index.
            if model is None or version == _LATEST:
                index = client.get_model_repository_index(headers=headers).models
                model = _only_model(address, index) if model is None else model
                named = _latest(address, index, model) if version == _LATEST else named
            config = client.get_model_config(model, named, headers=headers).config
            spec = _spec_of(config)
            arrays = batch_samples(spec, read(spec.string_inputs))
            result = client.infer(model, triton_inputs(arrays), named, headers=headers)
        except triton.InferenceServerException as error:
            raise ShardedInferError(failed_call(address, caller, error)) from error
    scores = {name: result.as_numpy(name) for name in spec.tower.outputs}
    response = result.get_response()
    tables = ""
    # Reading a missing key of a map of messages would add it.
    if DEFAULT_TABLES in response.parameters:
        tables = str(response.parameters[DEFAULT_TABLES].string_param)
    return Prediction(model, int(response.model_version), scores, tables)


def _only_model(address: str, index: Iterable[Any]) -> str:
    names = sorted({entry.name for entry in index if entry.state == _READY})
    if len(names) != 1:
        raise NotFoundError(f"{address}: say which --model; it serves {', '.join(names) or 'none'}")
    return str(names[0])


def _latest(address: str, index: Iterable[Any], model: str) -> str:
    versions = [int(e.version) for e in index if e.name == model and e.state == _READY]
    if not versions:
        raise NotFoundError(f"{address}: no version of model {model!r} is ready")
    return str(max(versions))


def _spec_of(config: Any) -> ModelSpec:
    # Names, widths and hashes of strings: a server does not report its tables' sizes.
    said = config.parameters
    dense: dict[str, int] = {}
    tables: list[TableSpec] = []
    members: dict[str, list[str]] = {}
    numbers: dict[str, dict[str, int]] = {}
    for one in config.input:
        width = max(1, int(one.dims[-1]))
        sequence = said[SEQUENCE + one.name].string_value if SEQUENCE + one.name in said else None
        if one.data_type == _FLOATS:
            (dense if sequence is None else numbers.setdefault(sequence, {}))[one.name] = width
            continue
        if sequence is not None:
            members.setdefault(sequence, []).append(one.name)
        id_map = None
        if STRING_HASH + one.name in said:
            hashed = said[STRING_HASH + one.name].string_value
            seed = said[STRING_HASH_SEED + one.name].string_value
            id_map = IdMapSpec("error", StringHash(hashed).value, int(seed))
        tables.append(TableSpec(one.name, 1, 1, id_map=id_map))
    outputs = tuple(output.name for output in config.output)
    return ModelSpec(
        name="remote",
        tables=tuple(tables),
        dense=DenseSpec(dense),
        tower=TowerSpec(outputs=outputs),
        sequences={
            name: SequenceSpec(
                int(said[MAX_LENGTH + name].string_value), tuple(features), numbers.get(name, {})
            )
            for name, features in members.items()
        },
    )
