"""Classes of processors that a process can be limited to, by variables set before torch computes.

torch and oneDNN read theirs when a process first uses them, not when it imports them.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from kernels.machine import MAX_INSTRUCTION_SET, InstructionSet, instruction_sets


class Limits(NamedTuple):
    """Names of a class in our code, oneDNN and torch; processors without it take the best below."""

    ours: InstructionSet
    onednn: str
    aten: str


# By our own names, the slowest first.
PROCESSOR_CLASSES: Final[Mapping[str, Limits]] = MappingProxyType(
    {
        "baseline": Limits(InstructionSet.BASELINE, "SSE41", "default"),
        "avx2": Limits(InstructionSet.AVX2, "AVX2", "avx2"),
        "avx512": Limits(InstructionSet.AVX512, "AVX512_CORE", "avx512"),
        "avx512_vnni": Limits(InstructionSet.AVX512, "AVX512_CORE_VNNI", "avx512"),
        "avx512_bf16": Limits(InstructionSet.AVX512, "AVX512_CORE_BF16", "avx512"),
        "amx": Limits(InstructionSet.AVX512, "AVX512_CORE_AMX", "avx512"),
    }
)


def can_run(processor_class: str) -> bool:
    """Whether this machine has its instruction set, and code for it; torch does not ask."""
    return PROCESSOR_CLASSES[processor_class].ours in instruction_sets()


def limiting_variables(processor_class: str) -> dict[str, str]:
    limits = PROCESSOR_CLASSES[processor_class]
    return {
        MAX_INSTRUCTION_SET: processor_class,
        "ONEDNN_MAX_CPU_ISA": limits.onednn,
        "ATEN_CPU_CAPABILITY": limits.aten,
    }
