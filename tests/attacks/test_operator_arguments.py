"""Operators of stored programs with extreme arguments, each in a child process."""

import os
import random
import signal
import subprocess
import sys
import warnings
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule

from sharded_infer.towers.program.operators import ALLOWED, TRUNC_DIVIDE, TRUNC_DIVIDE_NUMBER
from sharded_infer.towers.program.size_limit import BoundedProgram, _BoundedRun

CALLS, SECONDS = 30, 60
_INTEGERS = (-(2**63), -(2**31), -128, -1, 0, 1, 2, 127, 2**31 - 1, 2**31, 2**62, 2**63 - 1)
_SIZES = (*_INTEGERS, -3, -2, 3, 4, 5, -1, 0, 1, 2, 3)
_FLOATS = (0.0, -0.0, 0.5, -1.5, 1e-45, 3e38, -1e19, 1e308, float("inf"), float("nan"))
_SHAPES = ((2, 3), (3,), (), (2, 3, 4), (0,), (2, 0), (1, 1, 5, 5), (4, 4), (3, 2))
_DTYPES = (
    torch.int64, torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool,
    torch.float32, torch.float32, torch.bfloat16, torch.float16,
)  # fmt: skip
_VALUES: dict[str, tuple[Any, ...]] = {
    "int": _SIZES,
    "number": (*_SIZES, *_FLOATS),
    "float": _FLOATS,
    "bool": (False, True),
    "str": ("trunc", "floor", "none", "tanh", "ij,jk->ik", "i,i->", "constant", "reflect", "mean"),
    "ScalarType": (*_DTYPES, torch.float64, torch.int16),
    "Layout": (torch.strided,),
    "MemoryFormat": (torch.contiguous_format, torch.preserve_format),
    "Device": (torch.device("cpu"),),
}


def _tensor(draw: random.Random) -> Tensor:
    shape, dtype = draw.choice(_SHAPES), draw.choice(_DTYPES)
    count = torch.Size(shape).numel()
    if dtype.is_floating_point:
        return torch.tensor([draw.choice(_FLOATS) for _ in range(count)]).to(dtype).reshape(shape)
    return torch.tensor([draw.choice(_INTEGERS) for _ in range(count)]).to(dtype).reshape(shape)


def _argument(kind: str, draw: random.Random) -> Any:
    """An argument of a type of torch's schemas."""
    if kind.startswith("Optional["):
        return None if draw.random() < 0.5 else _argument(kind[9:-1], draw)
    if kind.startswith("List["):
        return [_argument(kind[5:-1], draw) for _ in range(draw.randrange(5))]
    return _tensor(draw) if kind == "Tensor" else draw.choice(_VALUES[kind])


def _empty() -> GraphModule:
    graph = Graph()
    graph.output(())
    return GraphModule(nn.Module(), graph)


def _call_often(target: torch._ops.OpOverload) -> None:
    run = _BoundedRun(_empty())
    for call in range(CALLS):
        draw = random.Random(f"{target} {call}")
        args: list[Any] = []
        kwargs: dict[str, Any] = {}
        for argument in target._schema.arguments:
            value = _argument(str(argument.real_type), draw)
            if argument.has_default_value() and draw.random() < 0.3:
                value = argument.default_value
            if argument.kwarg_only:
                kwargs[argument.name] = value
            else:
                args.append(value)
        with suppress(Exception), torch.inference_mode():
            run.call_function(target, tuple(args), kwargs)


def main() -> None:
    """Prints each operator that ends a child process, and the signal."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    # Imports what computes shapes before the forks.
    graph = Graph()
    graph.output(graph.call_function(torch.ops.aten.eye.default, (3,)))
    BoundedProgram(GraphModule(nn.Module(), graph), "eye")()
    operators = (*ALLOWED.values(), TRUNC_DIVIDE, TRUNC_DIVIDE_NUMBER)
    targets = [found for found in operators if isinstance(found, torch._ops.OpOverload)]
    for target in targets:
        child = os.fork()
        if child == 0:
            signal.alarm(SECONDS)
            _call_often(target)
            os._exit(0)
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if ended:
            sys.stdout.write(f"{target}: {signal.Signals(-ended).name}\n")
    sys.stdout.write(f"{len(targets)} operators\n")


@pytest.mark.timeout(600)
def test_no_operator_ends_its_process() -> None:
    words = (sys.executable, "-W", "ignore", "-m", "tests.attacks.test_operator_arguments")
    done = subprocess.run(words, capture_output=True, text=True, timeout=590, check=False)
    assert done.stdout.split("\n")[0].endswith(" operators"), done.stdout + done.stderr[-2000:]
    assert int(done.stdout.split()[0]) > 250


if __name__ == "__main__":
    main()
