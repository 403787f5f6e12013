"""Managed collisions in checkpoints that were altered, or are of something else."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from kernels.ids.id_hash import murmur_hash3_2x64
from sharded_infer.errors import WeightsError
from sharded_infer.importing.id_maps.mpzch import MpzchSettings
from sharded_infer.importing.id_maps.torchrec_maps import mch_id_map, mpzch_id_map

MOST = 2**63 - 1
PREFIX = "m._managed_collision_modules.users."
FALLBACK = MpzchSettings(disable_fallback=False)


def _mch() -> dict[str, Tensor]:
    """Two ranks of four rows, three ids and two."""
    half = 2**62
    segments = torch.full((1025,), -1)
    segments[:3] = torch.tensor([0, 4, 8])
    return {
        f"{PREFIX}_mch_sorted_raw_ids": torch.tensor(
            [5, 7, 9, MOST, half + 1, half + 2, MOST, MOST]
        ),
        f"{PREFIX}_mch_remapped_ids_mapping": torch.tensor([2, 0, 1, 3, 6, 4, 5, 7]),
        f"{PREFIX}_output_segments_tensor": segments,
    }


def _mpzch() -> dict[str, Tensor]:
    ids = torch.full((16, 1), -1)
    for key in (3, 8, 11, 2**40):
        slot = key % 2 * 8 + int(murmur_hash3_2x64(np.array([key]))[0] % np.uint64(8))
        ids[slot] = key
    return {f"{PREFIX}_hash_zch_identities": ids, f"{PREFIX}_hash_zch_bucket": torch.tensor([[2]])}


def _read_mch(state: dict[str, Tensor]) -> int:
    return mch_id_map(state, "users", input_hash="none").count


def _read_mpzch(state: dict[str, Tensor]) -> int:
    return mpzch_id_map(state, "users", FALLBACK).count


def test_the_unaltered_ones_are_read() -> None:
    assert _read_mch(_mch()) == 6, "five ids, and the one that stands for an empty slot"
    assert _read_mpzch(_mpzch()) >= 4


IDS, ROWS, SEGMENTS = (
    f"{PREFIX}{name}"
    for name in ("_mch_sorted_raw_ids", "_mch_remapped_ids_mapping", "_output_segments_tensor")
)


def _integers(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int64)


@pytest.mark.parametrize(
    ("key", "place", "value", "words"),
    [
        (IDS, 1, 5, "segment 0: expected ids in ascending order, each once, got 5"),
        (IDS, 1, MOST, "segment 0: expected ids in ascending order"),
        (IDS, 4, 10, "segment 1: row-wise sharding sends id 10 to segment 0"),
        (ROWS, 0, 4, "id 5 has row 4, expected one of its segment, 0 to 3"),
        (ROWS, 6, -1, f"id {MOST} has row -1, expected one of its segment"),
        (SEGMENTS, 0, 1, "expected segments from row 0 up"),
        (SEGMENTS, 2, -1, "has row 6|row-wise sharding sends|ascending order"),
        (IDS, None, torch.zeros(8), "expected whole numbers, got torch.float32"),
        (IDS, None, _integers(2, 4), r"one number an id, got \[2, 4"),
        (IDS, None, _integers(0), "expected 0 numbers, got 8"),
        (ROWS, None, _integers(7), "expected 8 numbers, got 7"),
    ],
)
def test_altered_mch_is_refused(key: str, place: int | None, value: Any, words: str) -> None:
    state = _mch()
    if place is None:
        state[key] = value
    else:
        state[key][place] = value
    with pytest.raises(WeightsError, match=words):
        _read_mch(state)


def test_mch_without_one_of_its_arrays_is_refused() -> None:
    state = _mch()
    del state[ROWS]
    with pytest.raises(WeightsError, match="holds no weight .*_mch_remapped_ids_mapping"):
        _read_mch(state)


@pytest.mark.parametrize("value", [0, -1, 3, 17, 2**62])
def test_buckets_that_the_table_has_not_are_refused(value: int) -> None:
    state = _mpzch()
    state[f"{PREFIX}_hash_zch_bucket"][0, 0] = value
    with pytest.raises(WeightsError, match=f"expected 16 rows in equal buckets, got {value}"):
        _read_mpzch(state)


def test_an_id_in_a_slot_that_is_not_searched_is_refused() -> None:
    for slot in range(16):
        state = _mpzch()
        state[f"{PREFIX}_hash_zch_identities"][slot] = 3 if slot < 8 else 8
        with pytest.raises(WeightsError, match=rf"in slot {slot} is not where the module"):
            _read_mpzch(state)


def test_a_checkpoint_that_would_run_code_is_refused(tmp_path: Path) -> None:
    class Harm:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "harm",))

    torch.save(_mch() | {"harm": Harm()}, tmp_path / "model.pt")
    with pytest.raises(WeightsError, match="without running code"):
        mch_id_map(tmp_path / "model.pt", "users", input_hash="none")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / ".metadata").write_bytes(pickle.dumps(Harm()))
    with pytest.raises(WeightsError, match="nothing of it was run"):
        mch_id_map(tmp_path / "model", "users", input_hash="none")
    assert not (tmp_path / "harm").exists()


def test_two_collections_with_one_table_are_refused() -> None:
    state = _mch() | {f"other.{key}": value for key, value in _mch().items()}
    with pytest.raises(WeightsError, match="holds 'm.*' and 'other.*expected one"):
        _read_mch(state)
