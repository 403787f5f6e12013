"""Refusal of programs that need too much memory or work, before they take it.

A few numbers suffice (`full`, `expand`, an outer product), so that a small file could take all
memory of the machine that opens it, or hours. Most operators' arguments bound their results. Only
the others use torch's shape functions, whose import (SymPy, torch's compiler) takes 2 s and 70 MB.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from math import inf, prod, sqrt
from typing import Any, Final, TypeVar

import numpy as np
import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node
from torch.utils._pytree import tree_leaves, tree_map_only

from sharded_infer.errors import TowerError

# At the sizes that a program is opened with, four samples of the longest sequences. Of a tensor:
# scores of attention over 4,096 positions in 16 heads.
MOST_NUMBERS: Final = 2**30
# Tensors that an operator returns as a list.
MOST_PARTS: Final = 2**16
# Of the results that are needed at the same time, a new one among them.
MOST_BYTES: Final = 2**32
# Multiplications: 10 to 30 s of a core with AVX2. Eight layers of attention over 4,096 positions in
# 16 heads of 64.
MOST_WORK: Final = 2**39
# Multiplications of a product that take as long as one read or written number.
_NUMBER_WORK: Final = 64
_MOST_ITEM_BYTES: Final = 8
_META: Final = torch.device("meta")


class BoundedProgram:
    """Runs a program, unless it exceeds `MOST_NUMBERS`, `MOST_BYTES` or `MOST_WORK`.

    Attributes:
        most_bytes: of the results that were needed at the same time, in any run.
    """

    def __init__(self, program: GraphModule, where: str) -> None:
        self._program = program
        self._where = where
        self.most_bytes = 0

    def __call__(self, *inputs: Tensor) -> Any:
        """Runs it; the program's own errors pass.

        Raises:
            TowerError: it would exceed a limit. Names `where`.
        """
        run = _BoundedRun(self._program)
        try:
            return run.run(*inputs)
        except _TooLargeError as error:
            raise TowerError(f"{self._where}: {error}") from None
        finally:
            self.most_bytes = max(self.most_bytes, run.most_bytes)


class _TooLargeError(Exception):
    """A tensor, or the program, is too large."""


class _BoundedRun(Interpreter):
    """A run that computes the size of a result, and a product's work, before it is computed."""

    def __init__(self, program: GraphModule) -> None:
        super().__init__(program)
        # Torch would log an error, and import its compiler to do so.
        self.extra_traceback = False
        self._work = 0.0
        # Results' storages: values that use each address, and bytes of all.
        self._users: Counter[int] = Counter()
        self._bytes = self.most_bytes = 0

    def run_node(self, n: Node) -> Any:
        """Runs a node, and counts the bytes of results until their last use."""
        result = super().run_node(n)
        self._use(n, result, 1)
        for ended in self.user_to_last_uses.get(n, ()):
            self._use(ended, self.env[ended], -1)
        return result

    def call_function(self, target: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Calls an operator; raises `_TooLargeError` for its result, or all up to it."""
        if not isinstance(target, torch._ops.OpOverload):
            return super().call_function(target, args, kwargs)
        arguments, values = _tensors((args, kwargs)), _by_name(target, args, kwargs)
        if (parts := _most_parts(target.overloadpacket.__name__, values)) > MOST_PARTS:
            raise _TooLargeError(
                f"operator {target} makes {parts:.3g} tensors, expected at most {MOST_PARTS}"
            )
        numbers = _most_numbers(target, values)
        if (
            numbers > MOST_NUMBERS
            or self._bytes + _MOST_ITEM_BYTES * numbers > MOST_BYTES
            or self._work + _work(target, arguments, numbers) > MOST_WORK
        ):
            self._check(target, arguments, *_results_of_shapes(target, args, kwargs))
        result = super().call_function(target, args, kwargs)
        self._work += self._check(target, arguments, _tensors(result), _new(result, arguments))
        return result

    def _check(
        self,
        target: torch._ops.OpOverload,
        arguments: Sequence[Tensor],
        results: Sequence[Tensor],
        new: Sequence[Tensor],
    ) -> float:
        """Checks an operator's results, `new` ones of which share no memory; returns its work."""
        for tensor in results:
            if tensor.numel() > MOST_NUMBERS:
                raise _TooLargeError(
                    f"operator {target} makes a tensor {list(tensor.shape)}, expected at most "
                    f"{MOST_NUMBERS} numbers"
                )
        needed = self._bytes + sum(tensor.untyped_storage().nbytes() for tensor in new)
        if needed > MOST_BYTES:
            raise _TooLargeError(
                f"with that of operator {target}, the program needs results of {needed} bytes at "
                f"the same time, expected at most {MOST_BYTES} for four samples"
            )
        # Views take no time.
        work = _work(target, arguments, sum(tensor.numel() for tensor in new)) if new else 0.0
        if self._work + work > MOST_WORK:
            raise _TooLargeError(
                f"up to operator {target} the program computes {self._work + work:.2g} "
                f"multiplications, expected at most {MOST_WORK:.2g} for four samples"
            )
        return work

    def _use(self, node: Node, value: Any, users: int) -> None:
        is_result = node.op == "call_function"
        # Inputs and weights, and what shares their memory, are not counted.
        if not is_result and users < 0:
            return
        for tensor in _tensors(value):
            storage = tensor.untyped_storage()
            before = self._users[storage.data_ptr()]
            self._users[storage.data_ptr()] += users
            if is_result and (not before or before + users == 0):
                self._bytes += users * storage.nbytes()
                self.most_bytes = max(self.most_bytes, self._bytes)


def _tensors(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def _by_name(target: torch._ops.OpOverload, args: Any, kwargs: dict[str, Any]) -> dict[str, Any]:
    names = [argument.name for argument in target._schema.arguments]
    by_name = {**dict(zip(names, args, strict=False)), **kwargs}
    return {name: by_name[name] for name in names if name in by_name}


def _most_parts(name: str, values: Mapping[str, Any]) -> float:
    """An upper bound of the tensors that an operator returns; 0 if its arguments are wrong."""
    asked: Any = values.get(_PARTS.get(name, ""))
    if name not in _PARTS or isinstance(asked, list | tuple):
        return 1
    try:
        size = values["self"].shape[values.get("dim", 0)]
        if name == "unbind":
            return float(size)
        if name == "split":
            return float(size / max(1, asked))
        return float(asked)
    except (IndexError, TypeError):
        return 0


def _most_numbers(target: torch._ops.OpOverload, values: Mapping[str, Any]) -> float:
    """An upper bound of the numbers of an operator's results; infinity if it is not known."""
    bound = BOUNDED.get(target.overloadpacket.__name__)
    if bound is None:
        return inf
    tensors = _tensors([*values.values()])
    # A sum over no numbers has more numbers than its input.
    if any(tensor.numel() == 0 for tensor in tensors):
        return inf
    try:
        return bound(tensors, values)
    except (IndexError, KeyError, TypeError, ValueError):
        # Incompatible shapes, or more dimensions than NumPy's.
        return inf


def _new(results: Any, arguments: Sequence[Tensor]) -> list[Tensor]:
    """Results that do not lie in the memory of an argument."""
    taken = {tensor.untyped_storage()._cdata for tensor in arguments}
    return [t for t in _tensors(results) if t.untyped_storage()._cdata not in taken]


def _results_of_shapes(
    target: torch._ops.OpOverload, args: Any, kwargs: dict[str, Any]
) -> tuple[list[Tensor], list[Tensor]]:
    """An operator's results without memory, and the new ones; none if it refuses its arguments."""
    if "device" in (argument.name for argument in target._schema.arguments):
        kwargs = {**kwargs, "device": _META}
    try:
        moved = tree_map_only(Tensor, lambda tensor: tensor.to(_META), (args, kwargs))
        results = target(*moved[0], **moved[1])
    except Exception:
        # The arguments are wrong: the call itself reports it.
        return [], []
    return _tensors(results), _new(results, _tensors(moved))


def _work(target: torch._ops.OpOverload, tensors: Sequence[Tensor], numbers: float) -> float:
    """An operator's multiplications, from its tensors and the numbers of its results."""
    name = target.overloadpacket.__name__
    if name in _PRODUCTS:
        try:
            return numbers * _PRODUCTS[name](tensors, numbers)
        except (IndexError, ZeroDivisionError):
            # The arguments are wrong, or empty.
            return 0.0
    if name not in _PARTLY_READ:
        numbers = max([numbers, *(tensor.numel() for tensor in tensors)])
    return _NUMBER_WORK * numbers


# An upper bound of the numbers of a result, from an operator's tensors and all its arguments by
# their names in its schema.
_Bound = Callable[[Sequence[Tensor], Mapping[str, Any]], float]


def _product(tensors: Sequence[Tensor], _values: Mapping[str, Any]) -> float:
    first, second = tensors[:2]
    return first.numel() * second.numel() / first.shape[-1] ** 2


def _product_added(tensors: Sequence[Tensor], values: Mapping[str, Any]) -> float:
    return max(_product(tensors[1:], values), tensors[0].numel())


def _attention(tensors: Sequence[Tensor], _values: Mapping[str, Any]) -> float:
    queries, keys, rows = tensors[:3]
    vectors = queries.numel() / queries.shape[-1]
    return vectors * max(keys.numel() / keys.shape[-1], rows.numel())


def _expanded(tensors: Sequence[Tensor], values: Mapping[str, Any]) -> float:
    shape, sizes = tensors[0].shape, values["size"]
    kept = [1] * (len(sizes) - len(shape)) + list(shape)
    return prod(have if size == -1 else size for have, size in zip(kept, sizes, strict=True))


def _repeated(tensors: Sequence[Tensor], values: Mapping[str, Any]) -> float:
    times = values["repeats" if "repeats" in values else "dims"]
    return float(tensors[0].numel() * prod(times))


def _padded(tensors: Sequence[Tensor], values: Mapping[str, Any]) -> float:
    shape, pads = tensors[0].shape, values["pad"]
    added = [abs(before) + abs(after) for before, after in zip(pads[::2], pads[1::2], strict=True)]
    added += [0] * (len(shape) - len(added))
    return float(prod(size + more for size, more in zip(reversed(shape), added, strict=True)))


def _counted(_tensors: Sequence[Tensor], values: Mapping[str, Any]) -> float:
    step = abs(values.get("step", 1))
    return float(abs(values["end"] - values.get("start", 0)) / step + 1) if step else inf


_Function = TypeVar("_Function", bound=Callable[..., float])


def _of(function: _Function, operators: str) -> dict[str, _Function]:
    return dict.fromkeys(operators.split(), function)


# Key: an operator's name.
BOUNDED: Final[Mapping[str, _Bound]] = {
    **_of(
        lambda tensors, _: prod(np.broadcast_shapes(*(tensor.shape for tensor in tensors))),
        "abs add addcdiv addcmul atan atan2 bitwise_and bitwise_not bitwise_or bitwise_xor ceil "
        "celu clamp clamp_max clamp_min cos cosine_similarity div elu eq erf exp exp2 expand_as "
        "expm1 floor floor_divide fmod ge gelu gt hardsigmoid hardswish hardtanh isfinite isinf "
        "isnan le leaky_relu lerp log log10 log1p log2 log_sigmoid logaddexp logical_and "
        "logical_not logical_or logical_xor logit lt masked_fill max maximum min minimum mish mul "
        "nan_to_num ne neg pow reciprocal relu relu6 remainder round rsqrt rsub selu sigmoid sign "
        "silu sin softplus sqrt square sub tanh threshold trunc trunc_divide where",
    ),
    **_of(
        lambda tensors, _: max(tensor.numel() for tensor in tensors),
        "_log_softmax _native_batch_norm_legit_no_training _prelu_kernel _safe_softmax _softmax "
        "_to_copy _unsafe_view alias all amax amin any argmax argmin argsort batch_norm bucketize "
        "chunk clone contiguous copy cumprod cumsum detach diagonal dropout fill flatten flip "
        "full_like glu group_norm index_put layer_norm lift_fresh_copy linalg_vector_norm "
        "log_softmax logsumexp mT mean movedim narrow native_layer_norm norm numpy_T ones_like "
        "permute prelu prod reshape reshape_as rms_norm roll scatter scatter_add select "
        "select_scatter slice slice_scatter softmax sort split split_with_sizes squeeze std sum "
        "swapaxes swapdims t tensor_split to topk transpose tril triu type_as unbind unflatten "
        "unsqueeze var var_mean view view_as zeros_like",
    ),
    **_of(
        lambda tensors, _: sum(tensor.numel() for tensor in tensors),
        "cat column_stack concat hstack stack vstack",
    ),
    **_of(
        lambda tensors, _: prod(tensor.numel() for tensor in tensors),
        "dot index index_select mv outer take_along_dim tensordot",
    ),
    **_of(_product, "bmm int8_linear linear matmul mm"),
    **_of(_product_added, "addmm baddbmm"),
    **_of(_attention, "scaled_dot_product_attention"),
    **_of(lambda tensors, _: tensors[1].numel() * tensors[0].shape[-1], "embedding"),
    **_of(lambda tensors, _: tensors[1].numel(), "gather"),
    **_of(lambda _, values: prod(values["size"]), "full new_full new_ones new_zeros ones zeros"),
    **_of(_expanded, "broadcast_to expand"),
    **_of(_repeated, "repeat tile"),
    **_of(_padded, "constant_pad_nd pad"),
    **_of(_counted, "arange"),
    **_of(lambda *_: 1, "scalar_tensor sym_numel sym_size"),
}
# Multiplications for each number of a result. Key: an operator's name.
_PRODUCTS: Final[Mapping[str, Callable[[Sequence[Tensor], float], float]]] = {
    **_of(lambda tensors, _: tensors[0].shape[-1], "bmm int8_linear linear matmul mm"),
    **_of(lambda tensors, _: tensors[1].shape[-1], "addmm baddbmm"),
    **_of(
        lambda tensors, numbers: (1 + tensors[0].numel() / numbers) * tensors[1].shape[-2],
        "scaled_dot_product_attention",
    ),
    **_of(lambda tensors, _: tensors[1].numel() / tensors[1].shape[0], "conv1d conv2d"),
    **_of(lambda tensors, _: tensors[2].numel() / tensors[2].shape[0], "bilinear"),
    # Each index is one of at least two of the tensors and the result.
    **_of(
        lambda tensors, numbers: sqrt(prod(tensor.numel() for tensor in tensors) / numbers),
        "dot einsum mv tensordot",
    ),
}
# Operators that return a list, and their arguments that say of how many or how large tensors.
_PARTS: Final = {"chunk": "chunks", "split": "split_size", "tensor_split": "sections", "unbind": ""}
# Operators that read as many numbers as they return, of larger tensors.
_PARTLY_READ: Final = frozenset(("embedding", "gather", "index", "index_select", "take_along_dim"))
