import shutil
from functools import partial
from pathlib import Path

import pytest

from serving.protocol.lookups.lookup_messages import Leases
from serving.shard_host.held_shares import HeldShares
from serving.shard_host.share_loader import ShareLoader
from sharded_infer.repositories.repository import Repository
from tests.support.manifest_file import edit_manifest
from tests.support.marked_rows import publish_marked


def test_fronts_that_lease_every_version_make_a_host_hold_four_older_ones(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    shares = HeldShares()
    loader = ShareLoader(Repository(tmp_path), shares, 0)
    first = publish_marked(tmp_path, 1)
    for version in range(1, 9):
        if version > 1:
            folder = shutil.copytree(first, first.with_name(str(version)))
            edit_manifest(folder, partial(dict.update, version=version))
        loader.look()
        keys = tuple(held.key for held in shares.all())
        for stranger in (1, 2):
            shares.lease(Leases(stranger, keys))
        # Three fronts serve the first version all the time.
        for front in (3, 4, 5):
            shares.lease(Leases(front, keys[:1]))
    assert [held.key.version for held in shares.all()] == [1, 4, 5, 6, 7, 8]
    assert "version 2: fronts lease more than 4 older versions: the one with fewest" in caplog.text
