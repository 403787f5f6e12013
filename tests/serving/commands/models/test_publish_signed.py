from pathlib import Path

import pytest
import torch

from sharded_infer import ChangedRows, write_changes
from sharded_infer.errors import NotFoundError
from sharded_infer.repositories.repository import Repository
from tests.serving.test_cli import Files, files
from tests.support.delta_model import delta_spec, publish_whole, trained_rows
from tests.support.servers import Command
from tests.support.signing_keys import make_key

__all__ = ["files"]


def test_a_version_is_published_with_several_signatures(
    files: Files, sharded_infer: Command
) -> None:
    keys = [make_key(files.folder, name) for name in ("old", "new")]
    options = [word for key in keys for word in ("--sign-key", key.private)]
    published = sharded_infer(*files.publish(*options), "--json").json()
    for key in keys:
        trusting = Repository(files.repository, trusted_keys=[key.public])
        assert trusting.verify(published["model"], 1) > 0
    assert sharded_infer(*files.publish("--json")).json()["version"] == 2
    sharded_infer("verify", "-r", files.repository, "--trusted-key", keys[0].public).refused(
        f"/2/manifest.json: expected a signature by key {keys[0].key_id}", "got none"
    )


def test_the_step_that_joins_parts_signs(files: Files, sharded_infer: Command) -> None:
    key = make_key(files.folder, "key")
    sharded_infer(*files.publish("--part", "1/2", "--sign-key", key.private)).refused(
        "--sign-key is for the step that joins the parts"
    )
    for part in ("1/2", "2/2"):
        assert sharded_infer(*files.publish("--part", part)).code == 0
    words = files.publish("--join", 2, "--sign-key", key.private, "--json")
    published = sharded_infer(*words).json()
    Repository(files.repository, trusted_keys=[key.public]).verify(published["model"], 1)


def test_changed_rows_and_what_is_made_whole_of_them_are_signed(
    sharded_infer: Command, tmp_path: Path
) -> None:
    key, spec, place = make_key(tmp_path, "key"), delta_spec(), tmp_path / "models"
    publish_whole(spec, trained_rows(spec), place)
    changed = tmp_path / "rows.safetensors"
    rows = ChangedRows(torch.tensor([5]).numpy(), torch.ones(1, 16))
    write_changes({"item": rows}, changed)
    change = ("publish", "-r", place, "--changed", changed, "--sign-key")
    sharded_infer(*change, key.public).refused(f"{key.public}: expected an ed25519 private key")
    assert sharded_infer(*change, key.private).code == 0
    made = sharded_infer("repo", "compact", place, spec.name, "--sign-key", key.private, "--json")
    assert made.json()["version"] == 3
    trusting = Repository(place, trusted_keys=[key.public])
    for version in (2, 3):
        assert trusting.verify(spec.name, version) > 0


def test_a_key_that_cannot_be_used_is_refused_before_anything_is_published(
    files: Files, sharded_infer: Command
) -> None:
    key = make_key(files.folder, "key")
    sharded_infer(*files.publish("--sign-key", key.public)).refused(
        f"{key.public}: expected an ed25519 private key"
    )
    with pytest.raises(NotFoundError, match="no such repository"):
        Repository(files.repository).models()
