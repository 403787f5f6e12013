"""NumPy arrays as tensors that share their memory."""

import warnings

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

# A request's arrays are read-only views on its message. torch has no read-only tensors and warns
# once per process; nothing here writes to its inputs. This consumes the warning early.
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    torch.from_numpy(np.frombuffer(b"\0", np.uint8))


def tensor_of(array: NDArray[np.generic]) -> Tensor:
    """A tensor on an array's memory, which MUST NOT be written to."""
    return torch.from_numpy(array)
