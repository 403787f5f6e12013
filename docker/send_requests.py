"""Sends random requests to a server, so that its dashboards have something to show.

As people send them: bursts and quiet, small and large ones, with a deadline now and then.
"""

import argparse
import math
import random
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import tritonclient.grpc as triton
from numpy.typing import NDArray
from tritonclient.utils import InferenceServerException

from sharded_infer.artifacts.golden import generate_samples
from sharded_infer.inputs.sparse_inputs import SparseInputs
from sharded_infer.repositories.repository import Repository
from sharded_infer.specs.model_spec import ModelSpec

SIZES = (1, 4, 16, 64, 256)
SIZE_WEIGHTS = (10, 20, 40, 20, 10)
WAVE_SECONDS = 600.0
# One request in so many has a deadline that is hard to keep.
HURRIED = 20
HURRIED_MICROSECONDS = 2_000


def inputs(spec: ModelSpec, samples: int, seed: int) -> list[triton.InferInput]:
    """A random request, all features at once."""
    made = generate_samples(spec, samples, seed)
    bags = SparseInputs(spec).from_features(made.groups[0])
    lengths = bags.lengths.astype(np.int32)
    arrays: dict[str, tuple[NDArray[Any], str]] = {
        "sparse.values": (bags.values, "INT64"),
        "sparse.lengths": (lengths, "INT32"),
    }
    for name, array in zip(spec.dense.inputs, made.dense, strict=True):
        arrays[name] = (array, "FP32")
    return [
        triton.InferInput(name, array.shape, datatype).set_data_from_numpy(array)
        for name, (array, datatype) in arrays.items()
    ]


def pauses(rate: float) -> Iterator[float]:
    """Seconds between requests, without end: a rate that swings, and chance.

    Args:
        rate: requests a second, on average.
    """
    while True:
        swing = 1 + 0.6 * math.sin(2 * math.pi * time.monotonic() / WAVE_SECONDS)
        yield random.expovariate(rate * swing)


def main() -> None:
    """Sends until it is stopped, or for so many seconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repository", required=True, help="Where the models are published.")
    parser.add_argument("--server", default="localhost:8001", help="gRPC address.")
    parser.add_argument("--rate", type=float, default=30.0, help="Requests a second.")
    parser.add_argument("--seconds", type=float, default=math.inf, help="How long.")
    arguments = parser.parse_args()
    repository = Repository(arguments.repository)
    specs = [
        repository.manifest(name, max(repository.versions(name))).model_spec()
        for name in repository.models()
    ]
    ending = time.monotonic() + arguments.seconds
    with triton.InferenceServerClient(arguments.server) as client:
        for number, pause in enumerate(pauses(arguments.rate)):
            if time.monotonic() > ending:
                return
            time.sleep(pause)
            spec = specs[number % len(specs)]
            samples = random.choices(SIZES, SIZE_WEIGHTS)[0]  # noqa: S311 - no secret
            hurry = HURRIED_MICROSECONDS if number % HURRIED == 0 else None
            try:
                client.infer(spec.name, inputs(spec, samples, number), timeout=hurry)
            except InferenceServerException as error:
                if error.status() != "StatusCode.DEADLINE_EXCEEDED":
                    raise


if __name__ == "__main__":
    main()
