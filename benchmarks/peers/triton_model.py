"""TorchRec's quantized DLRM-v2, which Triton's Python backend imports in a separate process."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import triton_python_backend_utils as backend

from serving.bench.parts.torchrec_dlrm import build_torchrec_models, jagged
from serving.bench.workloads.dlrm_v2 import IDS_OF_A_BAG, dlrm_v2
from serving.bench.workloads.workload import DENSE
from serving.host.malloc import keep_freed_memory

_INPUTS = (DENSE, *(f"C{number}" for number in range(len(IDS_OF_A_BAG))))


class TritonPythonModel:
    """The class that Triton looks for."""

    def initialize(self, arguments: dict[str, str]) -> None:
        torch.set_num_threads(1)
        keep_freed_memory()
        parameters = json.loads(arguments["model_config"])["parameters"]
        max_rows = int(parameters["max_rows"]["string_value"])
        as_it_comes, lowered = build_torchrec_models(dlrm_v2(max_rows))
        in_bf16 = parameters["dense"]["string_value"] == "bf16"
        self._model = lowered if in_bf16 else as_it_comes

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        inputs = [
            [backend.get_input_tensor_by_name(request, name).as_numpy() for name in _INPUTS]
            for request in requests
        ]
        arrays = (np.concatenate(of_one) for of_one in zip(*inputs, strict=True))
        batch = dict(zip(_INPUTS, arrays, strict=True))
        dense = torch.from_numpy(batch[DENSE])
        with torch.inference_mode():
            scores = self._model.scores(dense, jagged(batch)).numpy()
        ends = np.cumsum([len(of_one[0]) for of_one in inputs])[:-1]
        return [
            backend.InferenceResponse([backend.Tensor("score", part[:, None])])
            for part in np.split(scores, ends)
        ]
