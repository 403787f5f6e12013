"""`benchmarks peers`: our server beside Triton, which is the real one."""

import warnings
from pathlib import Path

import grpc
import numpy as np
import pytest
import torch
from tritonclient.grpc import service_pb2, service_pb2_grpc

from benchmarks.peers.triton_server import DEFAULT_FOLDER, model_name, triton_serving
from serving.bench.load.library import load_generator_refusal
from serving.bench.parts.installed_torchrec import torchrec_is_installed
from serving.bench.workloads.dlrm_v2 import dlrm_v2
from serving.bench.workloads.requests import request_message
from serving.bench.workloads.workload import DENSE
from tests.benchmarks.conftest import Measure
from tests.support.servers import Command

ROOT = Path(__file__).parents[3]
TRITON = ROOT / DEFAULT_FOLDER
SMALL = dlrm_v2(max_rows=300)

needs_torchrec = pytest.mark.skipif(
    not torchrec_is_installed(), reason="TorchRec is not installed: run make bench-setup"
)
needs_peers = pytest.mark.skipif(
    not torchrec_is_installed() or not TRITON.is_dir() or load_generator_refusal() is not None,
    reason="the peers are not installed: run make bench-setup triton",
)


@needs_torchrec
def test_without_triton_it_says_how_to_install_it(benchmark: Command, tmp_path: Path) -> None:
    benchmark("peers", "--triton", tmp_path).refused(
        "Triton is not there: run `make triton`, or `pip install --no-deps"
    )


@needs_peers
@pytest.mark.timeout(900)
def test_triton_answers_with_the_scores_of_torchrecs_model() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from serving.bench.parts.torchrec_dlrm import build_torchrec_models, jagged
    requests = [SMALL.draw(np.random.default_rng(seed), pairs) for seed, pairs in ((1, 7), (2, 1))]
    _, lowered = build_torchrec_models(SMALL)
    with triton_serving(TRITON, ("bf16",), 300) as server:
        with grpc.insecure_channel(server.target.authority) as channel:
            stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
            calls = []
            for request in requests:
                message = service_pb2.ModelInferRequest.FromString(
                    request_message(SMALL.name, request)
                )
                message.model_name = model_name("bf16")
                calls.append(stub.ModelInfer.future(message))
            answers = [call.result(timeout=60).raw_output_contents[0] for call in calls]
        used = server.counts().cpu_seconds
    assert used is not None and used > 0
    for request, answer in zip(requests, answers, strict=True):
        with torch.inference_mode():
            expected = lowered.scores(torch.from_numpy(request[DENSE]), jagged(request)).numpy()
        # Triton may have put both in one batch, whose products round otherwise.
        np.testing.assert_allclose(np.frombuffer(answer, np.float32), expected, atol=2e-3)


@needs_peers
@pytest.mark.timeout(900)
def test_it_loads_both_servers_in_turns(measure: Measure) -> None:
    words = ("peers", "--triton", TRITON, "--max-rows", 300, "--precision", "bf16")
    out, fields = measure(*words, "--rounds", 1, "--seconds", 1)
    assert "over Triton, bf16" in out
    measured = fields["measurements"]
    rates = {(one["server"], one["variant"], one["pairs"]): one["rounds"] for one in measured}
    variants = (("Triton", "fp32"), ("Triton", "bf16"), ("ours", "bf16"))
    assert set(rates) == {(*of, pairs) for of in variants for pairs in (270, 16, 1)}
    assert all(one["requests_per_second"] > 0 and one["cpu_ms"] > 0 for one in measured)
    assert len(fields["ratios"]) == 6
    for one in fields["ratios"]:
        [ours] = rates["ours", one["ours"], one["pairs"]]
        [triton] = rates["Triton", one["triton"], one["pairs"]]
        assert one["rounds"] == [pytest.approx(ours / triton)]
