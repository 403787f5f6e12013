"""The forms a predict call's messages have."""

from enum import StrEnum


class WireForm(StrEnum):
    """Which messages a call is made of."""

    # The Open Inference Protocol's ModelInferRequest and ModelInferResponse.
    INFER = "infer"
    # PredictRequest and PredictResponse of protos/sharded_infer/v1/predictor.proto.
    PREDICT = "predict"
