"""Rows of imported id maps, compared with those of TorchRec's modules."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemReader
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)

from sharded_infer.errors import WeightsError
from sharded_infer.importing.id_maps.id_map_source import HashedRows, IdMapSource, SharedRows
from sharded_infer.importing.id_maps.mpzch import MpzchSettings
from sharded_infer.importing.id_maps.torchrec_maps import id_maps_of, mch_id_map, mpzch_id_map
from sharded_infer.inputs.id_map import hashed_rows_of, segments_of
from tests.support.managed_collisions import (
    MOST,
    RANKS,
    Ids,
    fill,
    mch,
    mch_ranks,
    mpzch,
    random_ids,
    remapped,
    routed,
    sharded,
    train,
)

pytestmark = [
    # TorchRec's own.
    pytest.mark.filterwarnings("ignore:To copy construct from a tensor:UserWarning"),
    # Saving without a process group is what is meant.
    pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning"),
]
ROWS, MANY = 2**17, 100_000


def served(source: IdMapSource, ids: Ids) -> Ids:
    """Reference: the row of each id by the source alone; -1: left out."""
    known: dict[int, int] = {}
    for keys, rows in source.chunks(source.table_rows or 0):
        assert not known.keys() & set(keys.tolist())
        known |= dict(zip(keys.tolist(), rows.tolist(), strict=True))
    assert len(known) == source.count
    others = _unknown(source, ids)
    return np.array(
        [known.get(key, other) for key, other in zip(ids.tolist(), others.tolist(), strict=True)]
    )


def _unknown(source: IdMapSource, ids: Ids) -> Ids:
    match source.unknown:
        case SharedRows(rows, input_size):
            return np.array(rows)[segments_of(ids, len(rows), input_size)]
        case HashedRows() as hashed:
            return hashed_rows_of(hashed, ids)
        case _:
            return np.full(len(ids), -1)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("input_size", [MOST, 10**12 + 7])
def test_rows_are_those_of_mch_modules(ranks: int, input_size: int) -> None:
    size = None if input_size == MOST else input_size
    known, others = random_ids(MANY, 1, size), random_ids(MANY, 2, size)
    modules = mch_ranks(ranks, ROWS, known, input_size)
    edges = np.array([0, 1, -1, -(2**63), MOST, MOST - 1, 2**62, 2**61])
    ids = np.concatenate([known, others, edges])
    expected = sharded(modules, ids, routed(ids, ranks, ranks, input_size))
    (source,) = id_maps_of(*modules).values()
    assert source.count > MANY * 9 // 10, "most ids are known"
    assert np.array_equal(served(source, ids), expected)


def mpzch_ranks(rows: int, buckets: int, ranks: int, known: Ids, **options: Any) -> list[Any]:
    whole, size = mpzch(rows, buckets, **options), options.get("input_hash_size", 0)
    spans = [(rows // ranks * rank, rows // ranks * (rank + 1)) for rank in range(ranks)]
    modules = [whole.rebuild_with_output_id_range(span).eval() for span in spans]
    for rank, module in enumerate(modules):
        fill(module, known[routed(known, buckets, ranks, size) == rank])
    return modules


def _is_sharded(key: str) -> bool:
    # As ShardedManagedCollisionCollection.sharded_parameter_names says.
    return not key.endswith(("_output_segments_tensor", "_current_iter_tensor", "_hash_zch_bucket"))


def _joined(modules: list[Any], prefix: str) -> dict[str, Tensor]:
    states = [module.state_dict() for module in modules]
    return {
        prefix + key: torch.cat([state[key] for state in states]) if _is_sharded(key) else value
        for key, value in states[0].items()
    }


def _save_by_ranks(modules: list[Any], prefix: str, path: Path) -> None:
    """Writes a distributed checkpoint as all ranks do, each its own chunk."""
    states = [module.state_dict() for module in modules]
    parts = {
        f"{prefix}{key}#{rank}": value
        for rank, state in enumerate(states)
        for key, value in state.items()
        if _is_sharded(key) or rank == 0
    }
    dcp.save(parts, checkpoint_id=path)
    metadata = FileSystemReader(path).read_metadata()
    tensors, stored = {}, {}
    for key, value in states[0].items():
        chunks, first = [], 0
        for rank, state in enumerate(states if _is_sharded(key) else states[:1]):
            place = torch.Size([first] + [0] * (value.ndim - 1))
            chunks.append(ChunkStorageMetadata(place, state[key].shape))
            old = MetadataIndex(f"{prefix}{key}#{rank}", torch.Size([0] * value.ndim))
            stored[MetadataIndex(prefix + key, place)] = metadata.storage_data[old]
            first += len(state[key])
        tensors[prefix + key] = TensorStorageMetadata(
            TensorProperties(dtype=value.dtype), torch.Size([first, *value.shape[1:]]), chunks
        )
    metadata.state_dict_metadata, metadata.storage_data = tensors, stored
    (path / ".metadata").write_bytes(pickle.dumps(metadata))


PREFIX = "model._managed_collision_collection._managed_collision_modules.users."


@pytest.mark.parametrize("ranks", RANKS)
def test_checkpoints_of_mch_say_their_ranks(ranks: int, tmp_path: Path) -> None:
    known = random_ids(5000, 1)
    modules = mch_ranks(ranks, ROWS, known)
    state = _joined(modules, PREFIX)
    torch.save(state, tmp_path / "model.pt")
    _save_by_ranks(modules, PREFIX, tmp_path / "model")
    ids = np.concatenate([known, random_ids(5000, 2)])
    expected = sharded(modules, ids, routed(ids, ranks, ranks, MOST))
    for weights in (state, tmp_path / "model.pt", tmp_path / "model"):
        source = mch_id_map(weights, "users", input_hash="none")
        assert isinstance(source.unknown, SharedRows) and len(source.unknown.rows) == ranks
        assert np.array_equal(served(source, ids), expected)


@pytest.mark.parametrize("ranks", [1, 4])
def test_counts_of_mch_say_how_often_each_id_came(ranks: int, tmp_path: Path) -> None:
    known = random_ids(500, 1)
    came = np.random.default_rng(3).integers(1, 20, len(known))
    modules = mch_ranks(ranks, 2**10, np.repeat(known, came))
    _save_by_ranks(modules, PREFIX, tmp_path / "model")
    expected = dict(zip(known.tolist(), came.tolist(), strict=True))
    for source in (
        *id_maps_of(*modules).values(),
        mch_id_map(_joined(modules, PREFIX), "users", input_hash="none"),
        mch_id_map(tmp_path / "model", "users", input_hash="none"),
    ):
        assert source.frequencies is not None
        of_row: dict[int, int] = {}
        for rows, counts in source.frequencies():
            of_row |= dict(zip(rows.tolist(), counts.tolist(), strict=True))
        ids, places = (np.concatenate(p) for p in zip(*source.chunks(2**10), strict=True))
        held = dict(zip(ids.tolist(), places.tolist(), strict=True))
        assert {key: of_row[held[key]] for key in expected if key in held} == {
            key: count for key, count in expected.items() if key in held
        }
        assert len(held.keys() & expected.keys()) > 400


def _double(values: Tensor, size: int) -> Tensor:
    return values * 2 % size


def test_an_input_hash_func_is_refused_by_name_until_the_caller_has_it() -> None:
    module = mch(64, input_hash_func=_double)
    train(module, np.arange(0, 40, 2))
    with pytest.raises(WeightsError, match=r"changes ids by input_hash_func \(_double\)"):
        id_maps_of(module)
    with pytest.raises(WeightsError, match="expected input_hash 'none' or 'caller', got 'double'"):
        id_maps_of(module, input_hash="double")  # type: ignore[arg-type]
    (source,) = id_maps_of(module, input_hash="caller").values()
    ids = np.arange(60)
    hashed = _double(torch.from_numpy(ids), MOST).numpy()
    assert np.array_equal(served(source, hashed), remapped(module, ids))


MPZCH_OPTIONS: list[dict[str, Any]] = [
    {},
    {"disable_fallback": True},
    {"input_hash_size": 10**12 + 7},
    {"input_hash_size": 10**12 + 7, "disable_fallback": True},
    {"opt_in_prob": 40, "percent_reserved_slots": 12.5},
    {"max_probe": 5},
]


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("options", MPZCH_OPTIONS, ids=str)
def test_rows_are_those_of_mpzch_modules(ranks: int, options: dict[str, Any]) -> None:
    buckets, size = 8, options.get("input_hash_size", 0)
    known, others = random_ids(MANY, 1, size or None), random_ids(MANY, 2, size or None)
    ids = np.concatenate([known, others, [] if size else [-1, -2, 0, MOST, -(2**63)], [0, 1, 5]])
    ids = np.unique(ids.astype(np.int64))
    modules = mpzch_ranks(ROWS, buckets, ranks, known, **options)
    expected = sharded(modules, ids, routed(ids, buckets, ranks, size))
    (source,) = id_maps_of(*modules).values()
    assert source.count > MANY // 2, "most ids are known"
    assert np.array_equal(served(source, ids), expected)


def test_ids_that_mpzch_would_look_up_outside_its_table_stay_inside() -> None:
    ids = np.array([10**6, 10**9, -1, 2**63 - 1, -(2**63)])
    for divided in (False, True):
        rows = hashed_rows_of(HashedRows(64, 8, 10**6, divided, None), ids)
        assert ((rows >= 0) & (rows < 64)).all()


def test_a_distributed_checkpoint_of_mpzch_over_ranks_is_read(tmp_path: Path) -> None:
    known = random_ids(3000, 1)
    modules = mpzch_ranks(4096, 8, 4, known)
    _save_by_ranks(modules, PREFIX, tmp_path / "model")
    source = mpzch_id_map(tmp_path / "model", "users", MpzchSettings(disable_fallback=False))
    ids = np.concatenate([known, random_ids(3000, 2)])
    assert np.array_equal(served(source, ids), sharded(modules, ids, routed(ids, 8, 4, 0)))


@pytest.mark.parametrize("ranks", [1, 4])
def test_counts_of_mpzch_say_how_often_each_id_came(ranks: int) -> None:
    options = {"disable_fallback": True, "track_id_freq": True}
    modules = mpzch_ranks(4096, 4, ranks, random_ids(3000, 1), **options)
    for module, slots in zip(modules, torch.arange(4096).chunk(ranks), strict=True):
        module._hash_zch_runtime_meta.data += slots[:, None] % 7
    settings = MpzchSettings(**options)
    weights = _joined(modules, PREFIX)
    from_state = mpzch_id_map(weights, "users", settings, buckets=4)
    for source in (*id_maps_of(*modules).values(), from_state):
        assert source.frequencies is not None
        rows, counts = (np.concatenate(part) for part in zip(*source.frequencies(), strict=True))
        assert counts.tolist() == (rows % 7).tolist()
        assert rows.tolist() == list(range(4096))
    without = mpzch_id_map(weights, "users", MpzchSettings(disable_fallback=True), buckets=4)
    assert without.frequencies is None


@pytest.mark.parametrize(
    ("buckets", "settings"),
    [
        (2, {}),
        (4, {"input_hash_size": 10**9}),
        (4, {"max_probe": 1}),
        (4, {"reserved_slots": 500}),
        (4, {"divided": True}),
    ],
    ids=str,
)
def test_wrong_settings_are_refused_with_an_id(buckets: int, settings: dict[str, Any]) -> None:
    module = mpzch(4096, 4)
    fill(module, random_ids(3000, 1))
    wrong = MpzchSettings(disable_fallback=True, **settings)
    with pytest.raises(WeightsError, match=r"in slot \d+ is not where the module searches it"):
        mpzch_id_map(_joined([module], PREFIX), "users", wrong, buckets=buckets)


def test_ranks_out_of_order_are_refused() -> None:
    modules = mch_ranks(2, ROWS, random_ids(100, 1))
    with pytest.raises(WeightsError, match=r"ranks in order, from rows \[0, 65536\], got \[65536"):
        id_maps_of(*reversed(modules))
    whole = mpzch(64, 4)
    halves = [whole.rebuild_with_output_id_range(span) for span in ((0, 32), (32, 64))]
    with pytest.raises(WeightsError, match=r"all 4 buckets, got buckets \[\(2, 4\), \(0, 2\)\]"):
        id_maps_of(*reversed(halves))
    with pytest.raises(WeightsError, match=r"all 4 buckets, got buckets \[\(0, 2\)\]"):
        id_maps_of(halves[0])


def test_what_has_no_managed_collisions_is_refused() -> None:
    with pytest.raises(WeightsError, match="managed collisions .* got Linear"):
        id_maps_of(torch.nn.Linear(1, 1))
    with pytest.raises(WeightsError, match="table 'ads': the state dict holds nothing"):
        mch_id_map(_joined([mch(8)], PREFIX), "ads", input_hash="none")
