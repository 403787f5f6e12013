"""TorchRec's managed collision modules after training on one or several ranks."""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from kernels.ids.id_hash import murmur_hash3_2x64

Ids = NDArray[np.int64]
mc_modules = pytest.importorskip("torchrec.modules.mc_modules")
hash_modules = pytest.importorskip("torchrec.modules.hash_mc_modules")
jagged_tensor = pytest.importorskip("torchrec.sparse.jagged_tensor")
RANKS = [1, 2, 4, 8]
MOST = 2**63 - 1


def jagged(ids: Ids) -> dict[str, Any]:
    ones = torch.ones(len(ids), dtype=torch.int64)
    return {"f": jagged_tensor.JaggedTensor(values=torch.from_numpy(ids), lengths=ones)}


def remapped(module: Any, ids: Ids) -> Ids:
    """Rows of the module, -1 for ids that it leaves out."""
    with torch.no_grad():
        out = module.remap(module.preprocess(jagged(ids)))["f"]
    rows, lengths = out.values().numpy(), out.lengths().numpy()
    if len(rows) == len(ids):
        return rows
    found = np.full(len(ids), -1)
    found[lengths == 1] = rows
    return found


def sharded(modules: list[Any], ids: Ids, rank_of: Ids) -> Ids:
    """Rows of ids that row-wise sharding sends to the modules of all ranks."""
    found = np.empty(len(ids), np.int64)
    for rank, module in enumerate(modules):
        found[rank_of == rank] = remapped(module, ids[rank_of == rank])
    return found


def routed(ids: Ids, buckets: int, ranks: int, input_size: int) -> Ids:
    """Rank of each id, by the operator that TorchRec's input distribution calls."""
    given = torch.from_numpy(ids)
    lengths, values, _, _, places = torch.ops.fbgemm.block_bucketize_sparse_features(
        torch.tensor([len(ids)]),
        given,
        bucketize_pos=False,
        sequence=True,
        block_sizes=torch.tensor([-(-input_size // buckets)]),
        total_num_blocks=torch.tensor([buckets]),
        my_size=ranks,
        keep_orig_idx=True,
    )
    assert torch.equal(values[places], given)
    return np.repeat(np.arange(ranks), lengths.numpy())[places.numpy()]


def mch(rows: int, input_size: int = MOST, **options: Any) -> Any:
    return mc_modules.MCHManagedCollisionModule(
        zch_size=rows,
        device=torch.device("cpu"),
        eviction_policy=mc_modules.DistanceLFU_EvictionPolicy(),
        eviction_interval=1,
        input_hash_size=input_size,
        **options,
    )


def train(module: Any, ids: Ids) -> None:
    module.train()
    module.profile(jagged(ids))
    module.eval()


def mch_ranks(ranks: int, rows: int, known: Ids, input_size: int = MOST) -> list[Any]:
    ends = [rows // ranks * rank for rank in range(ranks + 1)]
    modules = []
    for rank, (first, end) in enumerate(itertools.pairwise(ends)):
        module = mch(rows, input_size).rebuild_with_output_id_range((first, end), ends)
        train(module, known[routed(known, ranks, ranks, input_size) == rank])
        modules.append(module)
    return modules


def random_ids(count: int, seed: int, size: int | None = None) -> Ids:
    """Different ids in any order: of all 64-bit numbers, or below `size`."""
    rng = np.random.default_rng(seed)
    low, high = (0, size) if size else (-(2**63), MOST)
    ids = np.unique(rng.integers(low, high, count + count // 8))
    return rng.permutation(ids)[:count]


def mpzch(rows: int, buckets: int, **options: Any) -> Any:
    """A module without ids, which remaps and does not train."""
    module = hash_modules.HashZchManagedCollisionModule(
        zch_size=rows, device=torch.device("cpu"), total_num_buckets=buckets, **options
    )
    return module.eval()


def fill(module: Any, ids: Ids) -> None:
    """Write ids into the table as training does on a GPU: each in the first free slot.

    All ids take their first step, then those that found their slot taken the second, and so on.
    """
    values, sizes, offsets = module.input_mapper(
        values=torch.from_numpy(ids), output_offset=module._output_global_offset_tensor
    )
    slots = module._hash_zch_identities.data.numpy().reshape(-1)
    reserved = max(0, module.get_reserved_slots_per_bucket())
    left, spaces, offset = values.numpy(), sizes.numpy() - reserved, offsets.numpy()
    first = (murmur_hash3_2x64(left) % spaces.astype(np.uint64)).astype(np.int64)
    for step in range(module._max_probe):
        at = offset + (first + step) % spaces
        free = np.flatnonzero((slots[at] == -1) & (step < spaces))
        taken, winners = np.unique(at[free], return_index=True)
        slots[taken] = left[free[winners]]
        waiting = slots[at] != left
        left, spaces, offset, first = (x[waiting] for x in (left, spaces, offset, first))
