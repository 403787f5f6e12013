"""The processor: its features, and the limits that environment variables put on them.

    SHARDED_INFER_MAX_INSTRUCTION_SET   the class whose features our compiled code may use
    ONEDNN_MAX_CPU_ISA                  the same of oneDNN, by its own names
    ATEN_CPU_CAPABILITY                 the same of torch's operators

All choices of a kernel or a precision follow from a `Machine`, so that tests can simulate one.
"""

import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from functools import cache
from typing import Final

from kernels.abi.machine import InstructionSet as InstructionSet
from kernels.abi.machine import features
from kernels.errors import InputError

MAX_INSTRUCTION_SET: Final = "SHARDED_INFER_MAX_INSTRUCTION_SET"
_ONEDNN_LIMITS: Final = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA")
_ATEN_LIMIT: Final = "ATEN_CPU_CAPABILITY"


class Feature(IntFlag):
    """Features of a processor; the bits are those of native/base/processor.h.

    On 64-bit ARM VNNI is the dot product of bytes.
    """

    AVX2 = 1
    AVX_VNNI = 2
    AVX512 = 4
    AVX512_VNNI = 8
    BF16 = 16
    FP16 = 32
    AMX_INT8 = 64
    AMX_BF16 = 128
    AMX_FP16 = 256


class ProcessorClass(IntEnum):
    """Classes of x86-64 processors; each has the features of those before it."""

    BASELINE = 0
    AVX2 = 1
    AVX512 = 2
    AVX512_VNNI = 3
    AVX512_BF16 = 4
    AMX = 5


_ALL: Final = ~Feature(0)
_CLASS_FEATURES: Final[Mapping[ProcessorClass, Feature]] = {
    ProcessorClass.BASELINE: Feature(0),
    ProcessorClass.AVX2: Feature.AVX2,
    ProcessorClass.AVX512: Feature.AVX2 | Feature.AVX512,
    ProcessorClass.AVX512_VNNI: Feature.AVX2 | Feature.AVX512 | Feature.AVX512_VNNI,
    ProcessorClass.AVX512_BF16: Feature.AVX2 | Feature.AVX512 | Feature.AVX512_VNNI | Feature.BF16,
    ProcessorClass.AMX: _ALL,
}
# oneDNN's documentation, "CPU Dispatcher Control"; a name that is not here limits nothing.
_ONEDNN_FEATURES: Final[Mapping[str, Feature]] = {
    "SSE41": Feature(0),
    "AVX": Feature(0),
    "AVX2": Feature.AVX2,
    "AVX2_VNNI": Feature.AVX2 | Feature.AVX_VNNI,
    "AVX2_VNNI_2": Feature.AVX2 | Feature.AVX_VNNI,
    "AVX512_CORE": _CLASS_FEATURES[ProcessorClass.AVX512],
    "AVX512_CORE_VNNI": _CLASS_FEATURES[ProcessorClass.AVX512_VNNI],
    "AVX512_CORE_BF16": _CLASS_FEATURES[ProcessorClass.AVX512_BF16],
    "AVX512_CORE_FP16": _CLASS_FEATURES[ProcessorClass.AVX512_BF16] | Feature.FP16,
    "AVX512_CORE_AMX": _ALL & ~Feature.AMX_FP16,
}


@dataclass(frozen=True, slots=True)
class Machine:
    """A processor under its limits.

    Attributes:
        architecture: as `platform.machine()`.
        processor: features that the hardware and the system have.
        ours: of these, those that our compiled code may use.
        onednn: of these, those that oneDNN may use.
        limits: values of set environment variables, by name.
    """

    architecture: str
    processor: Feature
    ours: Feature
    onednn: Feature
    limits: Mapping[str, str]

    @property
    def is_arm(self) -> bool:
        """True on 64-bit ARM."""
        return self.architecture in ("aarch64", "arm64")

    @property
    def processor_class(self) -> ProcessorClass:
        """The class that our compiled code sees."""
        if self.ours & (Feature.AMX_BF16 | Feature.AMX_INT8):
            return ProcessorClass.AMX
        return max(c for c in ProcessorClass if _CLASS_FEATURES[c] & ~self.ours == Feature(0))

    @property
    def class_name(self) -> str:
        """The class as people write it, such as `AVX-512 BF16`."""
        if self.is_arm:
            return "64-bit ARM BF16" if Feature.BF16 in self.ours else "64-bit ARM"
        return self.processor_class.name.replace("AVX512", "AVX-512").replace("_", " ")

    @property
    def class_text(self) -> str:
        """The class, and the limits that were set."""
        limits = ", ".join(f"{name}={value}" for name, value in self.limits.items())
        return f"{self.class_name} ({limits})" if limits else self.class_name

    @property
    def instruction_sets(self) -> tuple[InstructionSet, ...]:
        """Variants of compiled code that may run, the fastest last."""
        sets = [InstructionSet.BASELINE]
        sets += [InstructionSet.AVX2] if Feature.AVX2 in self.ours else []
        sets += [InstructionSet.AVX512] if Feature.AVX512 in self.ours else []
        return tuple(sets)


def machine() -> Machine:
    """The current processor, under the limits of the environment.

    Raises InputError if `SHARDED_INFER_MAX_INSTRUCTION_SET` is no class of processors.
    """
    given = {
        n: os.environ[n]
        for n in (MAX_INSTRUCTION_SET, *_ONEDNN_LIMITS, _ATEN_LIMIT)
        if os.environ.get(n)
    }
    return limited_machine(platform.machine(), _features(), given)


def limited_machine(architecture: str, processor: Feature, limits: Mapping[str, str]) -> Machine:
    """A machine under limits by environment variables; raises as `machine`."""
    ours = processor
    if (name := limits.get(MAX_INSTRUCTION_SET)) is not None:
        try:
            ours &= _CLASS_FEATURES[ProcessorClass[name.upper()]]
        except KeyError as error:
            known = ", ".join(c.name.lower() for c in ProcessorClass)
            raise InputError(f"{MAX_INSTRUCTION_SET}: expected {known}, got {name!r}") from error
    isa = next((limits[name] for name in _ONEDNN_LIMITS if name in limits), "ALL")
    onednn = processor & _ONEDNN_FEATURES.get(isa.upper(), _ALL)
    return Machine(architecture, processor, ours, onednn, limits)


def instruction_sets() -> tuple[InstructionSet, ...]:
    """Variants of compiled code that may run here, the fastest last; raises as `machine`."""
    return machine().instruction_sets


def chosen_set(wanted: InstructionSet | None, kernel: str) -> InstructionSet:
    """The wanted instruction set, else the fastest.

    Raises InputError, with the kernel's name, if this machine cannot or may not run the wanted one.
    """
    available = instruction_sets()
    if wanted is not None and wanted not in available:
        names = ", ".join(variant.name.lower() for variant in available)
        raise InputError(f"{kernel}: no {wanted.name.lower()} here, only {names}")
    return max(available) if wanted is None else wanted


@cache
def _features() -> Feature:
    return Feature(features())
