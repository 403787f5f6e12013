from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.numpy import save_file

from sharded_infer.errors import WeightsError
from sharded_infer.importing.id_maps.keyed_tables import KeyedTables, open_keyed_tables

Part = tuple[NDArray[np.int64], NDArray[np.float32]]


def _parts(count: int, parts: int, dim: int, seed: int) -> list[Part]:
    """Random ids, each in the part of its remainder; the second of four parts is empty."""
    rng = np.random.default_rng(seed)
    ids = rng.permutation(np.unique(rng.integers(-(2**63), 2**63 - 1, count)))
    places = ids % parts
    if parts == 4:
        places[places == 1] = 2
    values = rng.random((len(ids), dim), dtype=np.float32)
    return [(ids[places == part], values[places == part]) for part in range(parts)]


def _write_dynamicemb(folder: Path, table: str, parts: list[Part]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for rank, (ids, values) in enumerate(parts):
        ending = f"rank_{rank}.world_size_{len(parts)}"
        ids.tofile(folder / f"{table}_emb_keys.{ending}")
        values.tofile(folder / f"{table}_emb_values.{ending}")
        ids.tofile(folder / f"{table}_emb_scores.{ending}")
    (folder / f"{table}_opt_args.json").write_text('{"opt_type": "adam"}')


def _check(tables: KeyedTables, table: str, parts: list[Part]) -> None:
    rows_of = tables.weights
    source = tables.id_maps[table]
    total = sum(len(ids) for ids, _ in parts)
    assert source.count == source.table_rows == rows_of.shape(table)[0] == total
    expected = {
        int(key): row for ids, values in parts for key, row in zip(ids, values, strict=True)
    }
    for ids, rows in source.chunks(total):
        for key, row in zip(ids.tolist(), rows.tolist(), strict=True):
            assert np.array_equal(rows_of.read(table, row, row + 1)[0].numpy(), expected.pop(key))
    assert not expected


@pytest.mark.parametrize("world", [1, 2, 4, 12])
def test_a_dump_of_dynamicemb_is_read(world: int, tmp_path: Path) -> None:
    users, ads = _parts(500, world, 6, 1), _parts(300, world, 3, 2)
    _write_dynamicemb(tmp_path / "model.ebc", "users", users)
    _write_dynamicemb(tmp_path / "model.ebc", "ads", ads)
    for folder in (tmp_path, tmp_path / "model.ebc"):
        tables = open_keyed_tables(folder)
        assert list(tables.weights.keys()) == list(tables.id_maps) == ["ads", "users"]
        _check(tables, "users", users)
        _check(tables, "ads", ads)


@pytest.mark.parametrize("world", [1, 4])
def test_scores_of_dynamicemb_are_frequencies_if_that_is_said(world: int, tmp_path: Path) -> None:
    parts = _parts(500, world, 6, 1)
    _write_dynamicemb(tmp_path, "users", parts)
    assert open_keyed_tables(tmp_path).id_maps["users"].frequencies is None
    source = open_keyed_tables(tmp_path, scores_are_frequencies=True).id_maps["users"]
    assert source.frequencies is not None
    rows, counts = (np.concatenate(part) for part in zip(*source.frequencies(), strict=True))
    assert rows.tolist() == list(range(source.count))
    assert counts.tolist() == [int(i) for ids, _ in parts for i in ids]
    scores = tmp_path / f"users_emb_scores.rank_0.world_size_{world}"
    scores.write_bytes(scores.read_bytes()[:-8])
    with pytest.raises(WeightsError, match=f"'users': expected {source.count} numbers, got"):
        open_keyed_tables(tmp_path, scores_are_frequencies=True)
    scores.unlink()
    with pytest.raises(WeightsError, match=scores.name):
        open_keyed_tables(tmp_path, scores_are_frequencies=True)


@pytest.mark.parametrize("shards", [1, 3])
def test_an_export_of_torcheasyrec_is_read(shards: int, tmp_path: Path) -> None:
    users, ads = _parts(500, shards, 6, 1), _parts(300, shards, 3, 2)
    for rank in range(shards):
        arrays = {}
        for name, parts in (("users", users), ("ads_emb", ads)):
            ids, values = parts[rank]
            arrays |= {f"{name}.keys": ids, f"{name}.values": values, f"{name}.scores": ids}
        np.savez(tmp_path / f"sparse_dynamic_embedding-{rank:02d}-of-{shards:02d}.npz", **arrays)
    np.savez(tmp_path / f"sparse_embeddings-00-of-{shards:02d}.npz", genres=np.zeros((3, 2)))
    tables = open_keyed_tables(tmp_path)
    assert set(tables.id_maps) == {"users", "ads_emb"}
    _check(tables, "users", users)
    _check(tables, "ads_emb", ads)


@pytest.mark.parametrize("saved", ["memory", "npz", "safetensors"])
@pytest.mark.parametrize("partitions", [0, 1, 4, 12])
def test_embeddings_of_deeprec_are_read(saved: str, partitions: int, tmp_path: Path) -> None:
    parts = _parts(400, max(1, partitions), 5, 3)
    name, arrays = "input_layer/users/embedding", dict[str, Any]()
    for part, (ids, values) in enumerate(parts):
        prefix = f"{name}/part_{part}" if partitions else name
        arrays |= {f"{prefix}-keys": ids, f"{prefix}-values": values, f"{prefix}-freqs": ids}
        arrays[f"{prefix}-versions"] = ids
    arrays["dense/kernel"] = np.zeros((3, 3), np.float32)
    match saved:
        case "memory":
            tables = open_keyed_tables({key: torch.from_numpy(a) for key, a in arrays.items()})
        case "npz":
            np.savez(tmp_path / "model.npz", **arrays)
            tables = open_keyed_tables(tmp_path / "model.npz")
        case _:
            save_file(arrays, tmp_path / "model.safetensors")
            tables = open_keyed_tables(tmp_path / "model.safetensors")
    assert list(tables.id_maps) == [name]
    _check(tables, name, parts)
    source = tables.id_maps[name]
    assert source.frequencies is not None
    rows, counts = (np.concatenate(part) for part in zip(*source.frequencies(), strict=True))
    assert rows.tolist() == list(range(source.count))
    assert counts.tolist() == [int(i) for ids, _ in parts for i in ids]


def test_frequencies_that_are_not_one_for_each_id_are_refused() -> None:
    tensors = {"u-keys": np.arange(3), "u-values": np.zeros((3, 2), np.float32)}
    assert open_keyed_tables(tensors).id_maps["u"].frequencies is None
    with pytest.raises(WeightsError, match="'u': expected 3 numbers, got 2"):
        open_keyed_tables({**tensors, "u-freqs": np.arange(2)})
    with pytest.raises(WeightsError, match="'u': expected whole numbers, got torch.float32"):
        open_keyed_tables({**tensors, "u-freqs": np.zeros(3, np.float32)})


def test_other_weights_of_the_model_are_joined(tmp_path: Path) -> None:
    _write_dynamicemb(tmp_path, "users", _parts(50, 2, 6, 1))
    tables = open_keyed_tables(tmp_path)
    genres = torch.rand(7, 3)
    source = tables.beside({"genres": genres})
    assert set(source.keys()) == {"genres", "users"}
    assert torch.equal(source.read("genres", 2, 5), genres[2:5])
    assert torch.equal(source.read("users", 20, 30), tables.weights.read("users", 20, 30))
    with pytest.raises(WeightsError, match="holds a weight 'users'"):
        tables.beside({"users": genres})
