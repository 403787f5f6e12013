"""Bags of ids in a `KeyedJaggedTensor`, as padded tensors by key.

TorchRec is not imported: its class comes with the example.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter, itemgetter
from typing import Any, Final

import torch
from torch import Tensor
from torch.fx import Graph, Node

from kernels.wording import listed
from sharded_infer.errors import InputError
from sharded_infer.repeats import repeated

# Padding behind the ids of a bag.
NO_ID = -(2**63)


def _bag_lengths(zeros: Tensor, length: int) -> Tensor:
    return zeros + length


# The lengths of full bags are constants, whose readers the graph would not show.
_library: Final = torch.library.Library("sharded_infer", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define("bag_lengths(Tensor zeros, SymInt length) -> Tensor")  # type: ignore[no-untyped-call]
_library.impl("bag_lengths", _bag_lengths, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
torch.library.register_fake("sharded_infer::bag_lengths", _bag_lengths, lib=_library)
BAG_LENGTHS: Final = torch.ops.sharded_infer.bag_lengths.default


@dataclass(frozen=True, slots=True)
class KeyedBags:
    """Keys of a `KeyedJaggedTensor`, in order."""

    kind: Any
    keys: tuple[str, ...]
    dtype: torch.dtype

    @classmethod
    def split(cls, value: Any, most: int) -> tuple["KeyedBags", dict[str, Tensor]]:
        """Keys, and the ids of each: int64 `[B, most ids]`, padded, of at most `most` samples.

        Raises InputError for weights of ids, which are not imported, and for values, lengths and
        keys that do not fit each other.
        """
        ids, all_lengths, keys = _parts(value)
        starts, bags = 0, {}
        of_keys = all_lengths.reshape(len(keys), -1)
        for key, lengths in zip(keys, of_keys, strict=True):
            first = lengths[:most]
            own = ids[starts : starts + int(first.sum())]
            bags[key] = padded_ids(own, first, filling=NO_ID)
            starts += int(lengths.sum())
        return cls(type(value), tuple(keys), ids.dtype), bags

    def joined(self, bags: Sequence[Tensor]) -> Any:
        """The `KeyedJaggedTensor` of bags as `split` gives them.

        While torch exports the module, bags are full, and their sizes do not depend on values.
        """
        keys, samples = list(self.keys), bags[0].shape[0]
        if not torch.compiler.is_exporting():
            used = [bag != NO_ID for bag in bags]
            values = torch.cat([bag[own] for bag, own in zip(bags, used, strict=True)])
            lengths = torch.cat([own.sum(1) for own in used])
            return self.kind(keys, values.to(self.dtype), lengths=lengths)
        values = torch.cat([bag.reshape(-1) for bag in bags])
        zeros = torch.zeros(samples, dtype=torch.int64)
        lengths = torch.cat([BAG_LENGTHS(zeros, bag.shape[1]) for bag in bags])
        counts = [samples * bag.shape[1] for bag in bags]
        return self.kind(
            keys,
            values.to(self.dtype),
            lengths=lengths,
            offsets=torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]),
            stride=samples,
            length_per_key=counts,
            offset_per_key=[sum(counts[:at]) for at in range(len(counts) + 1)],
        )


def _parts(value: Any) -> tuple[Tensor, Tensor, list[str]]:
    """Ids, lengths and keys of a `KeyedJaggedTensor`; InputError where they do not fit."""
    if value.weights_or_none() is not None:
        raise InputError(
            "example inputs: a KeyedJaggedTensor with weights, expected ids alone: describe "
            "weighted features by a spec, with the collection as weights"
        )
    ids, lengths, keys = value.values().detach().cpu(), value.lengths().cpu(), list(value.keys())
    if twice := repeated(keys):
        raise InputError(f"example inputs: a KeyedJaggedTensor with key {twice[0]!r} twice")
    if ids.dtype not in (torch.int64, torch.int32):
        raise InputError(
            f"example inputs: a KeyedJaggedTensor of keys {listed(keys)} with {ids.dtype} values, "
            "expected int64 or int32 ids"
        )
    if not len(lengths) or len(lengths) != len(keys) * value.stride():
        raise InputError(
            f"example inputs: a KeyedJaggedTensor of {len(keys)} keys with {len(lengths)} lengths, "
            "expected one for each key of each sample"
        )
    if int(lengths.min()) < 0 or int(lengths.sum()) != len(ids):
        raise InputError(
            f"example inputs: a KeyedJaggedTensor of keys {listed(keys)} with {len(ids)} ids, "
            f"expected {int(lengths.sum())}, the sum of its lengths, none of them below 0"
        )
    return ids, lengths, keys


def padded_ids(
    values: Tensor,
    lengths: Tensor,
    width: int | None = None,
    *,
    filling: int = 0,
    left: bool = False,
) -> Tensor:
    """Int64 `[B, width]`: each sample's ids, with `filling` at their end, or at their `left`.

    Args:
        values: int `[ids]`, in the samples' order.
        lengths: int `[B]`: each sample's ids.
        width: None: that of the longest sample, at least 1.
    """
    width = max(1, int(lengths.max())) if width is None else width
    places = torch.arange(width)
    used = places >= width - lengths[:, None] if left else places < lengths[:, None]
    padded = torch.full(used.shape, filling, dtype=torch.int64)
    padded[used] = values.long()
    return padded


def replace_regrouping(graph: Graph, node: Node) -> None:
    """Replace what TorchRec regroups pooled embeddings by with joined slices.

    `KeyedTensor.regroup` calls `permute_pooled_embs`, and `KTRegroupAsDict`
    `permute_multi_embedding_function`.
    """
    values: Any = node.args[0]
    if "multi" in str(node.target):
        rows = sorted(_constant(graph, node.args[1]), key=itemgetter(1, 3))
        for user in list(node.users):
            own = [(values[row[0]], row[2], row[4]) for row in rows if row[1] == user.args[1]]
            _replace_by_slices(graph, user, [(part, at, at + size) for part, at, size in own])
        graph.erase_node(node)
        return
    starts, order = (_constant(graph, argument) for argument in node.args[1:3])
    _replace_by_slices(graph, node, [(values, *starts[at : at + 2]) for at in order])


def _replace_by_slices(graph: Graph, node: Node, slices: Sequence[tuple[Node, int, int]]) -> None:
    with graph.inserting_before(node):
        parts = [
            graph.call_function(torch.ops.aten.slice.Tensor, (values, 1, start, end))
            for values, start, end in slices
        ]
        joined = graph.call_function(torch.ops.aten.cat.default, (parts, 1))
    joined.meta = dict(node.meta)
    node.replace_all_uses_with(joined)
    graph.erase_node(node)


def _constant(graph: Graph, node: Any) -> list[Any]:
    """Numbers of a constant, of which exported programs make copies."""
    while node.op != "get_attr":
        node = node.args[0]
    numbers: list[Any] = attrgetter(node.target)(graph.owning_module).tolist()
    return numbers
