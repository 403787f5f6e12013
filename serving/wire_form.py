"""The forms a predict call's messages have."""

from enum import StrEnum


class WireForm(StrEnum):
    """Which messages a call is made of."""

    # The Open Inference Protocol's ModelInferRequest and ModelInferResponse.
    INFER = "infer"
    # PredictRequest and PredictResponse of protos/sharded_infer/v1/predictor.proto.
    PREDICT = "predict"

    @property
    def method(self) -> str:
        """The RPC that carries it one by one: service and method."""
        return _METHODS[self]


_METHODS = {
    WireForm.INFER: "inference.GRPCInferenceService/ModelInfer",
    WireForm.PREDICT: "sharded_infer.v1.Predictor/Predict",
}
