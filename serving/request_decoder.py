"""The one way from a serialized request to a checked model input."""

from typing import Literal

from serving.input_check import InputCheck
from serving.message_decoder import MessageDecoder
from serving.native_request import LIBRARIES
from serving.portable_decoder import PortableDecoder
from serving.shared_tensors import SharedTensors
from serving.wire_form import WireForm
from sharded_infer.batch import ModelInput
from sharded_infer.spec import ModelSpec

Backend = Literal["native", "portable"]


class RequestDecoder:
    """Reads the messages of one model: compiled code first, protobuf for what that leaves."""

    def __init__(
        self,
        spec: ModelSpec,
        *,
        max_batch: int,
        backend: Backend | None = None,
        form: WireForm = WireForm.INFER,
        check: InputCheck | None = None,
    ) -> None:
        """Prepares what does not depend on the request.

        Args:
            spec: the model.
            max_batch: the largest batch to accept.
            form: of the messages.
            check: refuses more than the reading does; None: nothing more.
            backend: `portable` to do without compiled code; None takes it where it is.

        Raises:
            InputError: compiled code is asked for, but was not built.
        """
        self.backend: Backend = backend or ("portable" if LIBRARIES is None else "native")
        native = self.backend == "native"
        max_ids = None if check is None else check.max_ids
        self._native = (
            MessageDecoder(spec, max_batch=max_batch, max_ids=max_ids, form=form)
            if native
            else None
        )
        if check is not None and check.counts_inputs:
            # Compiled code counts no inputs: it knows the model's, and takes none twice.
            self._native = None
        self._portable = PortableDecoder(spec, max_batch=max_batch, form=form, check=check)
        self._check = check

    def decode(self, message: bytes, shared: SharedTensors | None = None) -> ModelInput:
        """Reads a serialized message.

        Args:
            message: the request.
            shared: reads its inputs in shared memory; None: it may have none.

        Returns:
            The batch, its ids checked.

        Raises:
            RequestError: the message is none, an input is malformed or not what the model
                expects, or an id is outside a table whose policy is `error`.
            NotFoundError: an input lies in a shared memory region that is not registered.
            RequestTooLargeError: more samples, ids or inputs than allowed.
        """
        found = None if self._native is None else self._native.decode(message)
        if found is None:
            found = self._portable.decode(message, shared)
        if self._check is not None:
            self._check.check(found)
        return found
