"""Publishes copies of a version, without quantizing anything."""

import hashlib
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from sharded_infer.artifacts.artifact import Artifact
from sharded_infer.artifacts.manifest import MANIFEST_NAME, FileRecord
from sharded_infer.repositories.repository import Repository
from sharded_infer.repositories.signatures.manifest_signatures import UNSIGNED, Sealing


@dataclass(frozen=True)
class Publisher:
    """Publishes copies of a small version, with added or changed files, or other release bounds."""

    source: Artifact

    def __call__(
        self,
        repository: Repository,
        more: dict[str, bytes] | None = None,
        model: str = "small",
        sealing: Sealing = UNSIGNED,
        release: Mapping[str, float] = MappingProxyType({}),
    ) -> int:
        manifest = self.source.manifest
        with repository.staging(model) as staged:
            shutil.copytree(self.source.path, staged, dirs_exist_ok=True)
            (staged / MANIFEST_NAME).unlink()
            files: dict[str, FileRecord] = dict(manifest.files)
            for name, content in (more or {}).items():
                (staged / name).write_bytes(content)
                files[name] = FileRecord(len(content), hashlib.sha256(content).hexdigest())
            spec = {**manifest.spec, "name": model}
            if release:
                spec["release"] = dict(release)
            changed = replace(manifest, files=files, model=model, spec=spec)
            return int(repository.commit(staged, changed, sealing=sealing).name)
