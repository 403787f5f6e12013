import numpy as np
import pytest

from sharded_infer.errors import RequestError
from sharded_infer.inputs.finite_check import FiniteCheck
from sharded_infer.inputs.request_reader import make_input
from sharded_infer.specs.model_spec import DenseSpec, ModelSpec, ServingSpec, TableSpec


def check(spec: ModelSpec, **inputs: object) -> None:
    arrays = {
        "dense": np.zeros((3, 2), np.float32),
        "user": np.zeros((1, 2), np.int64),
        "item": np.zeros((3, 1), np.int64),
        **inputs,
    }
    FiniteCheck(spec).check(make_input(spec, arrays))


def spec(serving: ServingSpec) -> ModelSpec:
    return ModelSpec(
        name="small",
        tables=(TableSpec("user", 50, 8), TableSpec("item", 50, 8)),
        dense=DenseSpec({"dense": 2}),
        serving=serving,
    )


REFUSES, PASSES = spec(ServingSpec()), spec(ServingSpec(non_finite="pass"))


@pytest.mark.parametrize("strange", [np.nan, np.inf, -np.inf])
def test_a_dense_input_is_named_with_its_sample_and_column(strange: float) -> None:
    dense = np.zeros((3, 2), np.float32)
    check(REFUSES, dense=dense)
    dense[2, 1] = strange
    check(PASSES, dense=dense)
    words = f"'dense', sample 2: expected finite numbers, got {strange} in column 1"
    with pytest.raises(RequestError, match=words):
        check(REFUSES, dense=dense)


@pytest.mark.parametrize("feature", ["user", "item"])
def test_the_feature_of_the_weights_is_named(feature: str) -> None:
    weights = {"user.weights": np.ones((1, 2), "f4"), "item.weights": np.ones((3, 1), "f4")}
    check(REFUSES, **weights)
    weights[f"{feature}.weights"][-1, -1] = np.nan
    check(PASSES, **weights)
    with pytest.raises(RequestError, match=f"weights of '{feature}': expected finite"):
        check(REFUSES, **weights)
