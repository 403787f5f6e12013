"""The methods by which predict calls come, as traces name them."""

from enum import Enum

from serving.wire_form import WireForm

_MODELS = "/v2/models/{model}"


class PredictMethod(Enum):
    """How a predict call came.

    Attributes:
        span_name: of its server span: service and method, or HTTP's verb and route.
        form: of its message and its answer.
        route: over HTTP, the path's template; empty: over gRPC.
    """

    MODEL_INFER = "inference.GRPCInferenceService/ModelInfer", WireForm.INFER
    MODEL_STREAM_INFER = "inference.GRPCInferenceService/ModelStreamInfer", WireForm.INFER
    PREDICT = "sharded_infer.v1.Predictor/Predict", WireForm.PREDICT
    # What its JSON or binary body says is made a ModelInferRequest.
    HTTP_INFER = f"POST {_MODELS}/infer", WireForm.INFER
    HTTP_INFER_VERSION = f"POST {_MODELS}/versions/{{version}}/infer", WireForm.INFER

    def __init__(self, span_name: str, form: WireForm) -> None:
        """Keeps what an entry of the table says."""
        self.span_name = span_name
        self.form = form
        self.route = span_name.removeprefix("POST ") if span_name.startswith("POST ") else ""
