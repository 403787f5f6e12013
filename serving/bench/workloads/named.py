"""The workloads of benchmarks, by name."""

from dataclasses import replace

from serving.bench.workloads.dlrm_v2 import dlrm_v2
from serving.bench.workloads.workload import Workload, equal_tables
from sharded_infer.errors import InputError
from sharded_infer.specs.precision import Precision

WORKLOADS: dict[str, Workload] = {
    "ranking": equal_tables("ranking", 26, 100_000, 64, 3, layers=(512, 256)),
    "ragged": equal_tables("ragged", 100, 20_000, 16, 3, layers=(256, 128), ragged=True),
    "dlrm-v2": dlrm_v2(),
}


def workload_named(name: str, precision: Precision = Precision.BF16) -> Workload:
    """Look up a workload, with a tower of a precision; InputError for an unknown name."""
    if name not in WORKLOADS:
        raise InputError(f"no workload is called {name!r}, expected one of {', '.join(WORKLOADS)}")
    return replace(WORKLOADS[name], precision=precision)
