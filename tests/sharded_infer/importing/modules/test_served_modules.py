"""Every architecture, published by one call and served: the trained module's own scores."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from sharded_infer import QuantizationSpec, from_module
from sharded_infer.client import Client
from sharded_infer.publishing.publication import publish
from tests.sharded_infer.importing.modules.architectures import ARCHITECTURES
from tests.support.processor_classes import can_run, limiting_variables
from tests.support.server_pages import fetch
from tests.support.servers import json_inputs, running_server

pytestmark = pytest.mark.rest
RELATIVE = 1e-5


class Published(NamedTuple):
    samples: Mapping[str, NDArray[Any]]
    scores: Mapping[str, NDArray[np.float32]]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Published]]:
    """A version of each architecture with fp32 rows, and its module's scores."""
    folder, published = tmp_path_factory.mktemp("modules"), {}
    for name, make in ARCHITECTURES.items():
        case = make()
        found = from_module(case.module.eval(), case.inputs, name=name, **case.options)
        spec = replace(found.spec, quantization=QuantizationSpec("fp32"))
        version = publish(spec, found.weights, found.tower, folder, calibration=found.samples)
        assert "compared with the trained module on" in version.compared
        published[name] = Published(found.samples, _own_scores(case, found))
    return folder, published


def _own_scores(case: Any, found: Any) -> dict[str, NDArray[np.float32]]:
    """Scores of the example by the module itself, called as its users do."""
    inputs = case.inputs
    call = getattr(case.module, case.options.get("method", "forward"))
    with torch.no_grad():
        if isinstance(inputs, dict) and call.__code__.co_argcount > 2:
            returned = call(**inputs)
        else:
            returned = call(*inputs) if isinstance(inputs, tuple) else call(inputs)
    values = returned.values() if isinstance(returned, dict) else returned
    values = [values] if isinstance(values, torch.Tensor) else list(values)
    shaped = [v.squeeze(1) if v.dim() == 2 and v.shape[1] == 1 else v for v in values]
    return {n: v.numpy() for n, v in zip(found.spec.tower.outputs, shaped, strict=True)}


@pytest.fixture(scope="module", params=["avx2", pytest.param("", id="this processor's class")])
def answers(
    request: pytest.FixtureRequest, repository: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """A server of all versions, limited to a class of processors."""
    limits = {}
    if request.param:
        if not can_run(request.param):
            pytest.skip(f"this processor has no {request.param}")
        limits = limiting_variables(request.param)
    with pytest.MonkeyPatch.context() as patched:
        for name, value in limits.items():
            patched.setenv(name, value)
        log = tmp_path_factory.mktemp("served") / "log"
        with running_server(repository[0], log, forked=not limits) as server:
            yield server


def test_each_architecture_is_served_with_its_modules_scores(repository: Any, answers: Any) -> None:
    with Client(answers.grpc_url) as client:
        for name, (samples, scores) in repository[1].items():
            count = len(next(iter(scores.values())))
            inputs = {key: values[:count] for key, values in samples.items()}
            body = json.dumps({"inputs": json_inputs(inputs)}).encode()
            status, text, _ = fetch(f"{answers.http_url}/v2/models/{name}/infer", body)
            assert status == 200, text
            by_rest = {output["name"]: output for output in json.loads(text)["outputs"]}
            by_grpc = client.predict(name, candidates=inputs).scores
            for output, expected in scores.items():
                largest = np.abs(expected).max()
                rest = np.reshape(by_rest[output]["data"], by_rest[output]["shape"])
                for found in (by_grpc[output], rest):
                    np.testing.assert_allclose(
                        found, expected, rtol=0, atol=RELATIVE * largest, err_msg=f"{name} {output}"
                    )
