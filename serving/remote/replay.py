"""Recorded requests, sent to a server again."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import tritonclient.grpc as triton
from numpy.typing import NDArray

from serving.remote.caller import ANONYMOUS, Caller
from serving.remote.failed_call import failed_call
from serving.remote.triton_inputs import triton_inputs
from sharded_infer.errors import RequestError, ShardedInferError
from sharded_infer.samples.record import RecordedRequest

ScoreRequest = Callable[[RecordedRequest], dict[str, NDArray[np.float32]]]


@contextmanager
def remote_scorer(
    address: str, version: str | None, *, caller: Caller = ANONYMOUS
) -> Iterator[ScoreRequest]:
    """Scores requests on a server, one at a time.

    Raises RequestError for a request that the server refuses, ShardedInferError if it cannot be
    reached, or does not know the model.
    """
    with triton.InferenceServerClient(address, creds=caller.channel_credentials()) as client:

        def score(request: RecordedRequest) -> dict[str, NDArray[np.float32]]:
            try:
                result = client.infer(
                    request.model,
                    triton_inputs(request.inputs),
                    version or "",
                    request_id=request.request_id,
                    headers=caller.headers,
                )
            except triton.InferenceServerException as error:
                is_refused = error.status() == "StatusCode.INVALID_ARGUMENT"
                kind = RequestError if is_refused else ShardedInferError
                raise kind(failed_call(address, caller, error)) from error
            return {name: result.as_numpy(name) for name in request.scores}

        yield score
