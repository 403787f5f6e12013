"""Joining of parts into the tables of one version, with the bytes of a whole publish."""

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kernels.wording import counted
from sharded_infer.artifacts.block_hashes import BlockHasher
from sharded_infer.artifacts.manifest import FileRecord
from sharded_infer.artifacts.table_file import HashedFile, write_parts
from sharded_infer.errors import ArtifactError, NotFoundError, StorageError
from sharded_infer.files.regular_file import read_blocks
from sharded_infer.files.staged_folder import storage_errors
from sharded_infer.progress import Progress, summed_progress
from sharded_infer.publishing.format_selection import FormatPlan
from sharded_infer.publishing.part_publication import check_parts
from sharded_infer.publishing.part_record import (
    PartOrigin,
    PartRecord,
    difference,
    origin_of,
    parse_record,
)
from sharded_infer.publishing.table_layout import lay_out
from sharded_infer.publishing.table_shares import FileShare, share_of
from sharded_infer.publishing.table_writer import (
    WrittenTables,
    check_room,
    table_meters,
    with_hashes,
)
from sharded_infer.repositories.repository import Repository


@dataclass(frozen=True, slots=True)
class FoundPart:
    """A matching part, with its expected content."""

    origin: PartOrigin
    shares: tuple[FileShare, ...]
    record: PartRecord


def find_parts(repository: Repository, plan: FormatPlan, parts: int) -> list[FoundPart]:
    """The records of all parts, in order; reads a few rows of the weights.

    Raises:
        InputError: too many or too few parts.
        NotFoundError: parts are missing or of another origin; names each and why.
        ArtifactError: a part's record is damaged; names it.
    """
    check_parts(parts)
    names = repository.parts.names(plan.spec.name)
    pieces = lay_out(plan.tables)
    found, problems = [], []
    for part in range(1, parts + 1):
        shares = tuple(share_of(plan.tables, pieces, part, parts))
        origin = origin_of(plan, shares, part, parts)
        try:
            record = _read(repository, plan.spec.name, origin.name)
        except ArtifactError as error:
            raise ArtifactError(f"{error}. Make {origin.words} again") from error
        if record is None:
            problems.append(_problem(repository, names, origin))
            continue
        joined = FoundPart(origin, shares, record)
        _check_record(joined, repository.parts.where(plan.spec.name, origin.name))
        found.append(joined)
    if problems:
        raise NotFoundError(
            f"{repository.location}: model {plan.spec.name!r}: {'; '.join(problems)}. "
            "Make those parts with the same spec, weights and options"
        )
    return found


def join_tables(
    folder: Path,
    repository: Repository,
    plan: FormatPlan,
    found: Sequence[FoundPart],
    progress: Progress,
) -> WrittenTables:
    """Write `tables/` of a version from its parts.

    Whole files are linked where the repository is a folder. All bytes are read and compared with
    the parts' hashes; `progress` is called with the bytes read.

    Raises:
        ArtifactError: a part's file is missing, altered or of another size; names the part.
        StorageError: the tables do not fit the disk, or writing failed.
    """
    meters = table_meters(plan)
    by_file: dict[str, list[_Piece]] = defaultdict(list)
    for part in found:
        for share in part.shares:
            by_file[share.file].append(_Piece(repository, part, share))
        for table, chunks in part.record.errors.items():
            for chunk in chunks:
                meters[table].add(chunk.errors())
    check_room(folder, sum(table.stored_bytes for table in plan.tables))
    total = sum(piece.expected.bytes for held in by_file.values() for piece in held)
    got = summed_progress(progress, "joining parts", total)
    (folder / "tables").mkdir()
    written = {}
    for file, held in by_file.items():
        path = folder / file
        if held[0].share.is_whole and held[0].link(path):
            hasher = BlockHasher()
            for block in held[0].blocks(path):
                hasher.update(block)
                got(len(block))
            written[file] = HashedFile(held[0].expected, hasher.finish())
        else:
            with storage_errors(path):
                written[file] = write_parts(path, _counted(held, got))
    reports = [meters[table.name].report() for table in plan.tables]
    encoders = sorted({part.record.encoder for part in found if part.shares})
    return WrittenTables(
        lay_out(plan.tables), with_hashes(folder, written), reports, ", ".join(encoders)
    )


def remove_parts(repository: Repository, found: Sequence[FoundPart]) -> None:
    """Remove joined parts, unless the storage leaves that to garbage collection."""
    for part in found:
        # The version is published: garbage collection removes the rest.
        with suppress(StorageError):
            repository.parts.remove(part.origin.model, part.origin.name)


@dataclass(frozen=True, slots=True)
class _Piece:
    repository: Repository
    part: FoundPart
    share: FileShare

    @property
    def expected(self) -> FileRecord:
        return self.part.record.files[self.share.file]

    def link(self, target: Path) -> bool:
        origin = self.part.origin
        return self.repository.parts.link(origin.model, origin.name, self.share.file, target)

    def blocks(self, linked: Path | None = None) -> Iterator[bytes]:
        """Yield its bytes (from the file's link `linked` if set); compare their hash at the end.

        Raises ArtifactError if it is missing, altered or of another size.
        """
        origin, file, expected = self.part.origin, self.share.file, self.expected
        digest, size = hashlib.sha256(), 0
        if linked is None:
            blocks = self.repository.parts.blocks(origin.model, origin.name, file, expected)
        else:
            blocks = read_blocks(linked)
        try:
            for block in blocks:
                digest.update(block)
                size += len(block)
                yield block
        except NotFoundError as error:
            raise ArtifactError(self._damage(f"{file} is missing: {error}")) from error
        if size != expected.bytes:
            raise ArtifactError(
                self._damage(f"{file} has {counted(size, 'byte')}, expected {expected.bytes}")
            )
        if digest.hexdigest() != expected.sha256:
            raise ArtifactError(self._damage(f"{file} was altered: its SHA-256 differs"))

    def _damage(self, what: str) -> str:
        origin = self.part.origin
        where = self.repository.parts.where(origin.model, origin.name)
        return f"{where}: {what}. Make {origin.words} again"


def _counted(held: Sequence[_Piece], got: Callable[[int], None]) -> Iterator[bytes]:
    for piece in held:
        for block in piece.blocks():
            yield block
            got(len(block))


def _read(repository: Repository, model: str, name: str) -> PartRecord | None:
    text = repository.parts.record(model, name)
    return None if text is None else parse_record(text, repository.parts.where(model, name))


def _problem(repository: Repository, names: Sequence[str], expected: PartOrigin) -> str:
    for name in names:
        if not name.startswith(f"{expected.part}-of-"):
            continue
        with suppress(ArtifactError):
            found = _read(repository, expected.model, name)
            why = None if found is None else difference(found.origin, expected)
            if why is not None:
                return f"{expected.words} does not fit: {why} ({name})"
    return f"{expected.words} is missing"


def _check_record(part: FoundPart, where: str) -> None:
    record = part.record
    rows: dict[str, int] = defaultdict(int)
    for share in part.shares:
        for held in share.ranges:
            rows[held.table.name] += held.rows
    measured = {name: sum(c.rows for c in chunks) for name, chunks in record.errors.items()}
    sizes = {file: its.bytes for file, its in record.files.items()}
    if (
        record.origin != part.origin
        or measured != rows
        or sizes != {share.file: share.bytes for share in part.shares}
    ):
        raise ArtifactError(
            f"{where}: its record does not describe {part.origin.words}. Make it again"
        )
