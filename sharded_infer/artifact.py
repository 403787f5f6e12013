"""A version on disk: checked against its manifest, and opened."""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from kernels.wording import counted
from sharded_infer.errors import ArtifactError, NotFoundError, PlanError
from sharded_infer.manifest import (
    MANIFEST_NAME,
    MAX_MANIFEST_BYTES,
    FileRecord,
    Manifest,
    parse_manifest,
)
from sharded_infer.plan import Plan, check_plan, load_plan
from sharded_infer.progress import Progress, no_progress
from sharded_infer.regular_file import open_regular, read_regular

# Plans and reports of a million tables have less.
MAX_SMALL_BYTES = 256 * 2**20
_READ_BYTES = 2**20  # what is hashed stays in the cache meanwhile


@dataclass(frozen=True, slots=True)
class Artifact:
    """A version's folder and its manifest.

    Attributes:
        path: the folder.
        manifest: its manifest.
    """

    path: Path
    manifest: Manifest

    def plan(self, topology: str | None = None) -> Plan:
        """The plan for a topology.

        Args:
            topology: such as `cpu:2`; None takes the first that was published.

        Raises:
            NotFoundError: no plan was published for it.
            ArtifactError: the plan is not one for these tables.
        """
        plans = self.manifest.plans
        chosen = next(iter(plans)) if topology is None else topology
        if chosen not in plans:
            raise NotFoundError(
                f"model {self.manifest.model!r} version {self.manifest.version}: no plan for "
                f"topology {chosen!r}; it was published for {', '.join(plans)}"
            )
        name = plans[chosen]
        try:
            plan = load_plan(self.read_small(name), name)
            check_plan(plan, self.manifest.stored_tables())
        except PlanError as error:
            raise ArtifactError(f"{self.path / name}: {error}") from error
        if plan.topology.name != chosen:
            raise ArtifactError(
                f"{self.path / name}: is for topology {plan.topology.name!r}, expected {chosen!r}"
            )
        return plan

    def read_small(self, name: str) -> bytes:
        """A small file of the version, such as its report, compared with the manifest.

        Raises:
            NotFoundError: the version has no such file.
            ArtifactError: it is missing, altered, or too large to be read at once.
        """
        record = self.manifest.files.get(name)
        if record is None:
            raise NotFoundError(f"{self.path}: holds no {name}")
        path = self.path / name
        if record.bytes > MAX_SMALL_BYTES:
            raise ArtifactError(
                f"{path}: {counted(record.bytes, 'byte')}, expected at most {MAX_SMALL_BYTES}"
            )
        with open_listed(path, record) as file:
            content = file.read(record.bytes + 1)
        if hashlib.sha256(content).hexdigest() != record.sha256:
            raise ArtifactError(f"{path}: altered: its SHA-256 is another")
        return content


def open_artifact(path: Path) -> Artifact:
    """Reads a version's manifest.

    Raises:
        NotFoundError: there is no manifest, so there is no version.
        ArtifactError: the manifest is damaged, of an unknown format, or of another version.
    """
    where = path / MANIFEST_NAME
    try:
        text = read_regular(where, MAX_MANIFEST_BYTES)
    except FileNotFoundError as error:
        raise NotFoundError(f"{path}: no {MANIFEST_NAME}, so no published version") from error
    except OSError as error:
        raise ArtifactError(f"{where}: cannot be read: {error.strerror}") from error
    manifest = parse_manifest(text, str(where))
    if path.name.isdigit() and int(path.name) != manifest.version:
        raise ArtifactError(f"{where}: says version {manifest.version}, its folder {path.name}")
    return Artifact(path, manifest)


def verify_files(artifact: Artifact, progress: Progress = no_progress) -> int:
    """Compares every file with the manifest.

    Args:
        artifact: the version.
        progress: told the bytes read so far.

    Returns:
        Bytes read.

    Raises:
        ArtifactError: a file is missing, extra, short, long or altered; names it.
    """
    listed = artifact.manifest.files
    found = _files_below(artifact.path)
    if extra := sorted(found - set(listed) - {MANIFEST_NAME}):
        raise ArtifactError(f"{artifact.path / extra[0]}: not listed in the manifest")
    for name, record in listed.items():
        open_listed(artifact.path / name, record).close()
    total = sum(record.bytes for record in listed.values())
    done = 0
    for name, record in listed.items():
        digest = hashlib.sha256()
        with open_listed(artifact.path / name, record) as file:
            while chunk := file.read(_READ_BYTES):
                digest.update(chunk)
                done += len(chunk)
                progress("verifying", done, total)
        if digest.hexdigest() != record.sha256:
            raise ArtifactError(
                f"{artifact.path / name}: altered: its SHA-256 is {digest.hexdigest()[:12]}…, the "
                f"manifest says {record.sha256[:12]}…"
            )
    return total


def _files_below(path: Path) -> set[str]:
    found = set()
    for entry in path.rglob("*"):
        if entry.is_symlink():
            raise ArtifactError(f"{entry}: a symbolic link; a version holds files of its own")
        if not entry.is_dir():
            found.add(entry.relative_to(path).as_posix())
    return found


def open_listed(path: Path, record: FileRecord) -> BinaryIO:
    """Opens a file of a version.

    Args:
        path: the file.
        record: its size, as the manifest says; its hash is not compared.

    Raises:
        ArtifactError: it is missing, short, long or no regular file.
    """
    try:
        file = open_regular(path)
    except FileNotFoundError as error:
        raise ArtifactError(
            f"{path}: missing; the manifest says {counted(record.bytes, 'byte')}"
        ) from error
    except OSError as error:
        raise ArtifactError(f"{path}: cannot be read: {error.strerror}") from error
    size = os.fstat(file.fileno()).st_size
    if size != record.bytes:
        file.close()
        problem = "too short" if size < record.bytes else "too long"
        raise ArtifactError(
            f"{path}: {problem}: {counted(size, 'byte')}, the manifest says {record.bytes}"
        )
    return file
