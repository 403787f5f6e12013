"""Bodies of common client libraries: JSON, followed by all tensors in binary.

Compiled code reads them. `infer_request` reads all other bodies and reports every error.
"""

from typing import NamedTuple

from serving.abi.reader import JsonHeader, read_json_header
from serving.http_api.infer_request import OutputForms, read_document
from serving.http_api.json_reader import MOST_JSON_BYTES
from serving.protocol.readers.input_reader import InputReader
from serving.protocol.request_header import RequestHeader, located_header
from serving.protocol.request_tensors import RequestTensors
from sharded_infer.inputs.model_input import ModelInput


class UsualBody(NamedTuple):
    """A body (`json_bytes` of JSON, then the binary inputs) whose tensors have not been decoded."""

    asked: RequestHeader
    forms: OutputForms
    body: bytes
    json_bytes: int

    @property
    def size_bytes(self) -> int:
        """Bytes of the body."""
        return len(self.body)

    def header(self) -> RequestHeader:
        """Implements `Codec.header`."""
        return self.asked

    def decode(self, reader: InputReader, shared: RequestTensors) -> ModelInput:
        """Implements `Codec.decode`."""
        found = reader.read_body(self.body, self.json_bytes)
        if found is not None:
            return found
        model, version = self.asked.model_name, self.asked.model_version
        return read_document(model, version, self.body, self.json_bytes).decode(reader, shared)


def read_usual(model: str, version: str, body: bytes, json_bytes: int | None) -> UsualBody | None:
    """Reads the JSON of a body.

    Args:
        version: a number or a label; empty for the default version.
        body: JSON, followed by the binary inputs.
        json_bytes: the length of the JSON; None for the whole body.

    Returns:
        The body, or None if `read_document` must read it.
    """
    if json_bytes is None or json_bytes > min(len(body), MOST_JSON_BYTES):
        return None
    json = JsonHeader()
    if not read_json_header(body, json_bytes, json):
        return None
    asked = located_header(body, json.header)._replace(model_name=model, model_version=version)
    binary, said, wanted = bool(json.binary_default), json.binary_said, json.binary_wanted
    forms = {
        name: bool(wanted >> i & 1) if said >> i & 1 else binary
        for i, name in enumerate(asked.outputs)
    }
    return UsualBody(asked, OutputForms(binary, forms), body, json_bytes)
