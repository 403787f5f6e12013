"""Serialization of scores, by protobuf: writing bytes by hand would save only 1 µs of 3."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2

from serving.protocol.request_header import UNKNOWN_IDS
from serving.protocol.request_tensors import RequestTensors, place
from serving.shared_memory.regions import Span

# Response parameter with the tables whose default rows were used, separated by commas.
DEFAULT_TABLES = "sharded_infer_default_tables"
# Response parameter with the label whose weight chose the version.
LABEL = "label"


class InferWriter:
    """Writes the responses of one version."""

    def __init__(self, name: str, version: int, outputs: Sequence[str]) -> None:
        self.model = name
        self.version = str(version)
        self.outputs = tuple(outputs)

    def write(
        self,
        request_id: str,
        requested: Sequence[int],
        scores: Sequence[NDArray[np.float32]],
        default_tables: Sequence[str] = (),
        unknown_ids: Sequence[tuple[str, int]] = (),
        label: str = "",
    ) -> bytes:
        """Serializes a ModelInferResponse; arguments as the fields of `Scored`."""
        tensor = service_pb2.ModelInferResponse.InferOutputTensor
        response = service_pb2.ModelInferResponse(
            model_name=self.model,
            model_version=self.version,
            id=request_id,
            outputs=[
                tensor(name=self.outputs[position], datatype="FP32", shape=array.shape)
                for position, array in zip(requested, scores, strict=True)
            ],
            raw_output_contents=[score_bytes(array) for array in scores],
        )
        if label:
            response.parameters[LABEL].string_param = label
        if default_tables:
            response.parameters[DEFAULT_TABLES].string_param = ",".join(default_tables)
        for table, count in unknown_ids:
            response.parameters[f"{UNKNOWN_IDS}.{table}"].int64_param = count
        return bytes(response.SerializeToString())

    def placed(self, answer: bytes, places: Mapping[str, Span], shared: RequestTensors) -> bytes:
        """Moves outputs of a written answer to shared memory: parameters, and empty contents.

        Args:
            places: targets by output name.

        Raises:
            RequestError: a target is too small, or cannot be written.
            NotFoundError: its region is no longer registered.
        """
        response = service_pb2.ModelInferResponse.FromString(answer)
        for index, output in enumerate(response.outputs):
            span = places.get(output.name)
            if span is None:
                continue
            data = response.raw_output_contents[index]
            shared.write(span, data, f"output {output.name!r}")
            place(output.parameters, Span(span.region, span.offset, len(data)))
            # Clients look for each output's contents at its position.
            response.raw_output_contents[index] = b""
        return bytes(response.SerializeToString())


def score_bytes(scores: NDArray[np.float32]) -> bytes:
    """Bytes of an output, fp32 `[B]` or `[B, K]`: row-major, little-endian."""
    return scores.astype("<f4", copy=False).tobytes()
