"""Devices of a model's ranks, and the backend of the lookups there."""

import importlib
from collections.abc import Sequence
from typing import Any

import torch

from kernels.gpu.device_tables import DeviceTables
from kernels.gpu.reference_lookup import ReferenceLookup
from kernels.wording import counted
from sharded_infer.engines.device.device_choice import DeviceChoice
from sharded_infer.engines.device.device_lookups import Lookup
from sharded_infer.engines.device.engine_set import Backends
from sharded_infer.engines.device.requirements import missing_for_gpus
from sharded_infer.engines.device.runtime.cuda_runtime import CudaRuntime
from sharded_infer.engines.device.runtime.simulated_runtime import SimulatedRuntime
from sharded_infer.errors import DeviceError, PlanError
from sharded_infer.planning.plan import Plan


def triton_lookup(tables: DeviceTables, device: torch.device, usual_ids: Sequence[float]) -> Lookup:
    """A fused lookup with Triton, of tables in a device's memory or in pinned host memory.

    Args:
        usual_ids: expected ids per bag of each feature; they affect speed, not results.
    """
    # Imported here because machines without a GPU do not have Triton.
    module: Any = importlib.import_module("kernels.gpu.triton_lookup")
    lookup: Lookup = module.TritonLookup(tables, typical_lengths=usual_ids, device=device)
    return lookup


def rank_devices(
    plan: Plan, choice: DeviceChoice, available: int | None
) -> list[torch.device | None]:
    """Device of each rank, of `available` ones; None for pinned memory and unused ranks.

    Raises:
        PlanError: there are too few devices, or the number of GPUs chosen is not that of the ranks
            on GPUs.
    """
    kinds = ["unused"] * len(plan.topology.devices)
    for rank in plan.ranks:
        kinds[rank] = plan.topology.devices[rank].kind
    ranks, name = kinds.count("cuda"), plan.topology.name
    gpus: Sequence[int] = choice.gpus or range(ranks)
    if len(gpus) != ranks:
        raise PlanError(
            f"plan for {name!r}: {counted(len(gpus), 'GPU number')} for its "
            f"{counted(ranks, 'rank')} on GPUs"
        )
    most = max(gpus) + 1 if available is None else available
    if missing := [gpu for gpu in gpus if not 0 <= gpu < most]:
        raise PlanError(
            f"plan for {name!r}: for {counted(ranks, 'rank')} on GPUs there must be CUDA device "
            f"{missing[0]}, this machine has {most}; ranks can share one: name the GPU of each"
        )
    numbers = iter(gpus)
    return [torch.device("cuda", next(numbers)) if kind == "cuda" else None for kind in kinds]


def backends_of(choice: DeviceChoice) -> tuple[Backends, int | None]:
    """The lookups' backend and the number of devices, where None is unlimited.

    Raises DeviceError if there is no CUDA device, or a requirement of Triton is missing.
    """
    if choice.simulated:
        return Backends(SimulatedRuntime(), _reference, "simulated"), None
    runtime = CudaRuntime()
    if missing := missing_for_gpus():
        raise DeviceError(f"lookups on a CUDA device need {'; '.join(missing)}")
    return Backends(runtime, triton_lookup, "triton"), torch.cuda.device_count()


def _reference(tables: DeviceTables, _device: torch.device, _usual_ids: Sequence[float]) -> Lookup:
    return ReferenceLookup(tables)
