"""A client of the server's own protocol: NumPy, pandas and TorchRec's batches in, scores out.

with Client("ranker:8001") as client:
    answer = client.predict("dlrm", user={"user": 7}, candidates={"item": [1, 2, 3]})
    answer.scores["score"]
"""

from sharded_infer.client.async_client import AsyncClient
from sharded_infer.client.bags import Bags
from sharded_infer.client.call_settings import CallSettings, RetryPolicy
from sharded_infer.client.prediction import PredictError, Prediction, Timing
from sharded_infer.client.strings import hash_strings
from sharded_infer.client.sync_client import Client

__all__ = [
    "AsyncClient",
    "Bags",
    "CallSettings",
    "Client",
    "PredictError",
    "Prediction",
    "RetryPolicy",
    "Timing",
    "hash_strings",
]
