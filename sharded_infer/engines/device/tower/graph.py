"""Passes that prepare a stored program's graph for one device.

relu(linear(x, W, b))                  ->  _addmm_activation(b, x, W.t())     one kernel
addcmul(v, f, to(u, fp32))             ->  addcmul(v, f, u)                   one kernel fewer
x = addcmul(v, f, u), to(x, bf16)      ->  cross_step(v, f, u, bf16)          one kernel
zeros(..., device=cpu)                 ->  zeros(..., device=device)
"""

import importlib
from collections.abc import Mapping
from functools import partial
from operator import getitem
from typing import Any, Final

import torch
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import Argument, map_aggregate

from sharded_infer.errors import TowerError
from sharded_infer.towers.lowering.constants import constant_of, give_up_unused
from sharded_infer.towers.lowering.tensor_kinds import Kind

_aten = torch.ops.aten
_TAKING_MASKS: Final = (_aten.index.Tensor, _aten.index_put.default)
_MASKS: Final = (torch.bool, torch.uint8)
_PROMOTING: Final = (_aten.addcmul.default, _aten.add.Tensor, _aten.mul.Tensor, _aten.sub.Tensor)
_NARROW: Final = (torch.bfloat16, torch.float16)


def check_capturable(program: GraphModule, kinds: Mapping[Node, Kind], where: str) -> None:
    """Checks that no operator makes the host wait for a device, which capture does not allow.

    Raises TowerError if an operator's shapes or steps depend on values.
    """
    for node in program.graph.nodes:
        if node.target in _TAKING_MASKS:
            indices = [_dtype(program, kinds, index) for index in node.args[1]]
            if any(dtype in _MASKS for dtype in indices):
                raise TowerError(
                    f"{where}: {node.target} with a mask waits for the device, which a CUDA graph "
                    "cannot hold: use where or masked_fill"
                )
        classes = [*node.args[1:2], node.kwargs.get("num_classes", -1)]
        if node.target is _aten.one_hot.default and classes[0] == -1:
            raise TowerError(
                f"{where}: one_hot without num_classes waits for the device, which a CUDA graph "
                "cannot hold"
            )


def _dtype(program: GraphModule, kinds: Mapping[Node, Kind], value: object) -> torch.dtype | None:
    constant = constant_of(program, value)
    if constant is not None:
        return constant.dtype
    return kinds[value][0] if isinstance(value, Node) and value in kinds else None


def _casts(node: Node) -> bool:
    return node.target is _aten.to.dtype and isinstance(node.args[1], torch.dtype)


def fuse_activations(program: GraphModule, kinds: dict[Node, Kind]) -> dict[Node, Node]:
    """Fuses each ReLU behind a matrix product into its kernel, in place.

    `kinds`, from `kinds_of`, get those of new tensors. Returns each replaced product and its
    replacement.
    """
    graph, fused = program.graph, dict[Node, Node]()
    for node in list(graph.nodes):
        weight = _activated_weight(program, kinds, node)
        if weight is None:
            continue
        name = f"_transposed_{len(fused)}"
        program.register_buffer(name, weight.detach().t(), persistent=False)
        with graph.inserting_before(node):
            held = graph.get_attr(name)
            fused[node] = graph.call_function(
                _aten._addmm_activation.default, (node.args[2], node.args[0], held)
            )
        kinds[fused[node]] = kinds[node]  # later passes look it up
        next(iter(node.users)).replace_all_uses_with(fused[node])
    graph.eliminate_dead_code()
    give_up_unused(program)
    program.recompile()
    return fused


def _activated_weight(
    program: GraphModule, kinds: Mapping[Node, Kind], node: Node
) -> Tensor | None:
    """Weight of `linear(matrix, weight, bias)` whose only reader is a ReLU; otherwise None."""
    if node.target is not _aten.linear.default or node.kwargs or len(node.args) != 3:
        return None
    if [user.target for user in node.users] != [_aten.relu.default]:
        return None
    source, weight, bias = node.args
    held, added = constant_of(program, weight), constant_of(program, bias)
    kind = kinds.get(source) if isinstance(source, Node) else None
    if held is None or added is None or kind is None or len(kind[1]) != 2:
        return None
    return held if held.dim() == 2 and added.dim() == 1 else None


def drop_widenings(program: GraphModule, kinds: Mapping[Node, Kind]) -> None:
    """Removes casts to fp32 before elementwise operators with an fp32 operand, in place.

    These operators convert bf16 and fp16 operands themselves, with the same bits.
    """
    for node in program.graph.nodes:
        if node.target not in _PROMOTING:
            continue
        operands = [operand for operand in node.args if isinstance(operand, Node)]
        narrow = {operand for operand in operands if _widens(operand, kinds)}
        kept = [kinds.get(operand) for operand in operands if operand not in narrow]
        # Tensors without dimensions do not decide a result's dtype.
        if any(kind is not None and kind[0] is torch.float32 and kind[1] for kind in kept):
            for cast in narrow:
                node.replace_input_with(cast, cast.args[0])
    program.graph.eliminate_dead_code()
    program.recompile()


def _widens(node: Node, kinds: Mapping[Node, Kind]) -> bool:
    if not _casts(node) or node.args[1] is not torch.float32 or len(node.args) != 2:
        return False
    source = kinds.get(node.args[0]) if isinstance(node.args[0], Node) else None
    return source is not None and source[0] in _NARROW and len(source[1]) > 0


def cross_step(
    values: Tensor, first: Tensor, factor: Tensor, low: torch.dtype, keep: bool
) -> tuple[Tensor | None, Tensor]:
    """As `kernels.gpu.triton_dense.cross`, of any tensors of one shape."""
    operands = (values, first, factor)
    if values.is_meta:
        # Like the kernel, without temporaries.
        return torch.empty_like(values) if keep else None, torch.empty_like(values, dtype=low)
    if values.is_cuda and all(operand.is_contiguous() for operand in operands):
        # Imported here because machines without a GPU do not have Triton.
        module: Any = importlib.import_module("kernels.gpu.triton_dense")
        # Triton starts kernels on the current device, not on that of the tensors.
        with torch.cuda.device(values.device):
            crossed: tuple[Tensor | None, Tensor] = module.cross(*operands, low, keep=keep)
        return crossed
    if keep:
        whole = torch.addcmul(values, first, factor)
        return whole, whole.to(low)
    return None, torch.addcmul(values, first, factor, out=torch.empty_like(values, dtype=low))


def fuse_crosses(program: GraphModule, kinds: dict[Node, Kind]) -> int:
    """Fuses crosses with the casts of their results, in place; returns their number.

    `kinds`, from `kinds_of`, get those of new tensors.
    """
    graph, fused = program.graph, 0
    for node in graph.find_nodes(op="call_function", target=_aten.addcmul.default):
        casts = [user for user in node.users if _narrows(user)]
        if node.kwargs or not casts or not _is_even(node, kinds):
            continue
        low = casts[0].args[1]
        same = [cast for cast in casts if cast.args[1] is low]
        keep = len(same) < len(node.users)
        with graph.inserting_before(node):
            step = graph.call_function(cross_step, (*node.args, low, keep))
            whole = graph.call_function(getitem, (step, 0)) if keep else None
            narrow = graph.call_function(getitem, (step, 1))
        for cast in same:
            cast.replace_all_uses_with(narrow)
            graph.erase_node(cast)
        if whole is not None:
            kinds[whole] = kinds[node]  # later passes look it up
            node.replace_all_uses_with(whole)
        graph.erase_node(node)
        fused += 1
    program.recompile()
    return fused


def _narrows(node: Node) -> bool:
    return node.target is _aten.to.dtype and len(node.args) == 2 and node.args[1] in _NARROW


def _is_even(node: Node, kinds: Mapping[Node, Kind]) -> bool:
    """True if the operands have one shape and dtypes that `cross_step` takes."""
    operands = [kinds.get(arg) if isinstance(arg, Node) else None for arg in node.args]
    if len(operands) != 3 or any(kind is None for kind in operands):
        return False
    (values, first, factor) = [kind for kind in operands if kind is not None]
    return (
        values[0] is first[0] is torch.float32
        and factor[0] in (torch.float32, *_NARROW)
        and values[1] == first[1] == factor[1]
    )


def move_program(program: GraphModule, device: torch.device) -> GraphModule:
    """Copies a program, with its constants and the tensors that it creates on a device.

    Constants that share memory also share it there.
    """
    root, moved = torch.nn.Module(), dict[int, Tensor]()
    for name, constant in program.named_buffers(remove_duplicate=False):
        root.register_buffer(name, _moved(constant, device, moved), persistent=False)
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(program.graph, {}))
    placed = partial(_placed, device=device)
    for node in graph.nodes:
        node.args = map_aggregate(node.args, placed)
        node.kwargs = {name: map_aggregate(value, placed) for name, value in _options(node)}
        if _needs_device(node):
            node.kwargs = node.kwargs | {"device": device}
    return GraphModule(root, graph, "DeviceTowerProgram").eval()


def _moved(constant: Tensor, device: torch.device, moved: dict[int, Tensor]) -> Tensor:
    """The same view of a copy of the tensor's storage; each storage is copied once."""
    storage = constant.untyped_storage()
    memory = moved.get(storage._cdata)
    if memory is None:
        raw = torch.empty(0, dtype=torch.uint8, device=constant.device).set_(storage)
        memory = moved[storage._cdata] = raw.to(device, copy=True)
    view = torch.empty(0, dtype=constant.dtype, device=device)
    offset, shape, strides = constant.storage_offset(), constant.shape, constant.stride()
    return view.set_(memory.untyped_storage(), offset, shape, strides)


def _options(node: Node) -> list[tuple[str, Argument]]:
    # Device memory cannot be pinned.
    return [(name, value) for name, value in node.kwargs.items() if name != "pin_memory"]


def _placed(value: Any, device: torch.device) -> Any:
    return device if isinstance(value, torch.device) else value


def _needs_device(node: Node) -> bool:
    """True if a node creates a tensor from numbers and does not name a device."""
    if not isinstance(node.target, torch._ops.OpOverload) or node.kwargs.get("device") is not None:
        return False
    arguments = node.target._schema.arguments
    tensors = any("Tensor" in str(argument.type) for argument in arguments)
    return not tensors and any(argument.name == "device" for argument in arguments)


def weight_bytes(program: GraphModule) -> int:
    """Bytes of the storages of a program's constants; shared storages count once."""
    storages = [constant.untyped_storage() for constant in program.buffers()]
    return sum({storage._cdata: storage.nbytes() for storage in storages}.values())
