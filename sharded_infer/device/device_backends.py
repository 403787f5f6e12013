"""Which devices a model's ranks get, and what runs there."""

from collections.abc import Sequence

import torch

from kernels.device_reference import ReferenceLookup
from kernels.device_tables import DeviceTables
from kernels.wording import counted
from sharded_infer.device.card_needs import missing_for_cards
from sharded_infer.device.cuda_runtime import CudaRuntime
from sharded_infer.device.device_choice import DeviceChoice
from sharded_infer.device.device_lookups import Lookup
from sharded_infer.device.engine_set import Backends
from sharded_infer.device.rehearsal_runtime import RehearsalRuntime
from sharded_infer.device.triton_kernel import TritonKernel
from sharded_infer.errors import DeviceError, PlanError
from sharded_infer.plan import Plan


def rank_devices(
    plan: Plan, choice: DeviceChoice, available: int | None
) -> list[torch.device | None]:
    """The device of each rank; None: the host's pinned memory, or a rank that holds nothing.

    Args:
        plan: what is to be placed.
        choice: the user's.
        available: CUDA devices that there are; None: as many as are wanted.

    Raises:
        PlanError: there are too few devices, or too few or too many numbers; says how many.
    """
    kinds = ["unused"] * len(plan.topology.devices)
    for rank in plan.ranks:
        kinds[rank] = plan.topology.devices[rank].kind
    ranks, name = kinds.count("cuda"), plan.topology.name
    cards: Sequence[int] = choice.cards or range(ranks)
    if len(cards) != ranks:
        raise PlanError(
            f"plan for {name!r}: {counted(len(cards), 'card number')} for its "
            f"{counted(ranks, 'rank')} on cards"
        )
    most = max(cards) + 1 if available is None else available
    if missing := [card for card in cards if not 0 <= card < most]:
        raise PlanError(
            f"plan for {name!r}: for {counted(ranks, 'rank')} on cards there must be CUDA device "
            f"{missing[0]}, this machine has {most}; ranks can share one: name the card of each"
        )
    numbers = iter(cards)
    return [torch.device("cuda", next(numbers)) if kind == "cuda" else None for kind in kinds]


def backends_of(choice: DeviceChoice) -> tuple[Backends, int | None]:
    """What runs lookups, and how many devices there are; None: as many as are wanted.

    Raises:
        DeviceError: there is no CUDA device, or something is missing that Triton needs.
    """
    if choice.rehearsed:
        return Backends(RehearsalRuntime(), _reference, "rehearsed"), None
    runtime = CudaRuntime()
    if missing := missing_for_cards():
        raise DeviceError(f"lookups on a CUDA device need {'; '.join(missing)}")
    return Backends(runtime, TritonKernel, "triton"), torch.cuda.device_count()


def _reference(tables: DeviceTables, _device: torch.device, _usual_ids: Sequence[float]) -> Lookup:
    return ReferenceLookup(tables)
