"""Methods of predict calls and of lookups, as named in traces."""

from enum import Enum

from serving.protocol.message_format import MessageFormat

_MODELS = "/v2/models/{model}"


class PredictMethod(Enum):
    """A method of predict calls, or that of lookups.

    Attributes:
        span_name: of its server span: service and method, or HTTP's verb and route.
        route: template of the HTTP path; empty for gRPC.
    """

    MODEL_INFER = "inference.GRPCInferenceService/ModelInfer"
    MODEL_STREAM_INFER = "inference.GRPCInferenceService/ModelStreamInfer"
    PREDICT = "sharded_infer.v1.Predictor/Predict"
    HTTP_INFER = f"POST {_MODELS}/infer"
    HTTP_INFER_VERSION = f"POST {_MODELS}/versions/{{version}}/infer"

    LOOKUP = "sharded_infer.v1.ShardHost/Lookup"

    def __init__(self, span_name: str) -> None:
        self.span_name = span_name
        self.route = span_name.removeprefix("POST ") if span_name.startswith("POST ") else ""

    @property
    def format(self) -> MessageFormat:
        """Type of its messages; requests over HTTP are rewritten as `INFER`."""
        is_predict = self is PredictMethod.PREDICT
        return MessageFormat.PREDICT if is_predict else MessageFormat.INFER
