"""Publishing in parts: each part encodes its share of the tables' rows and stores it."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from quant.encoder import encoder_name
from quant.stream import EncodedChunk
from sharded_infer.errors import InputError
from sharded_infer.files.staged_folder import storage_errors
from sharded_infer.importing.id_maps.id_map_source import IdMapSource
from sharded_infer.planning.cost_model import DEFAULT_BATCH
from sharded_infer.progress import Progress, no_progress
from sharded_infer.publishing.part_record import (
    ChunkRecord,
    PartRecord,
    chunk_record,
    dump_record,
    origin_of,
)
from sharded_infer.publishing.quantization import take_over
from sharded_infer.publishing.rows.planned_rows import planned_rows
from sharded_infer.publishing.rows.row_order import Frequencies, row_order
from sharded_infer.publishing.table_layout import lay_out
from sharded_infer.publishing.table_shares import share_of
from sharded_infer.publishing.table_writer import write_shares
from sharded_infer.publishing.written_id_maps import with_id_maps
from sharded_infer.repositories.repository import Repository
from sharded_infer.specs.feature_statistics import FeatureStatistics
from sharded_infer.specs.model_spec import ModelSpec
from sharded_infer.specs.order_rows import OrderRows

MOST_PARTS = 4096


@dataclass(frozen=True, slots=True)
class PublishedPart:
    """A stored part; `files` are the table files of its rows, `location` is for display."""

    part: int
    parts: int
    location: str
    rows: int
    fp32_bytes: int
    table_bytes: int
    files: tuple[str, ...]


def publish_part(
    spec: ModelSpec,
    weights: object,
    repository: Repository | Path | str,
    *,
    part: int,
    parts: int,
    statistics: Mapping[str, FeatureStatistics] | None = None,
    topologies: Sequence[str] = ("cpu:1",),
    id_maps: Mapping[str, IdMapSource] | None = None,
    order_rows: str = OrderRows.AS_TRAINED,
    frequencies: Mapping[str, Frequencies] | None = None,
    batch: int = DEFAULT_BATCH,
    progress: Progress = no_progress,
) -> PublishedPart:
    """Encode and store one part's share of the tables' rows; `publish(parts=...)` joins them.

    Parts may be published in any order, concurrently, on any machines, and repeatedly. Equal
    arguments yield equal bytes. Only the part's rows, and rows sampled for a budget, are read.

    Args:
        spec, weights: as for `publish`, with the same spec.
        part: from 1 to `parts`.
        parts: their number; excess parts are empty if there are fewer chunks of 2 MiB.
        statistics: as for `publish`; they affect budgets and the order of rows.
        topologies, id_maps, order_rows, frequencies, batch: as for `publish`; they affect the order
            of rows.
        progress: called with the current step and its progress.

    Raises:
        InputError: no such part, or rows cannot be ordered.
        SpecError, WeightsError, PlanError, StorageError: as `publish`.
    """
    check_parts(parts, part)
    repository = repository if isinstance(repository, Repository) else Repository(repository)
    spec, source = take_over(spec, weights)
    sources = id_maps or {}
    _, planned = planned_rows(
        row_order(
            order_rows, with_id_maps(spec, sources), source, sources, statistics, frequencies
        ),
        repository,
        topologies=topologies,
        batch=batch,
        progress=progress,
    )
    plan = planned.formats
    shares = share_of(plan.tables, lay_out(plan.tables), part, parts)
    origin = origin_of(plan, shares, part, parts)
    errors: dict[str, list[ChunkRecord]] = defaultdict(list)

    def encoded(chunk: EncodedChunk) -> None:
        errors[chunk.table].append(chunk_record(chunk.errors))

    with repository.staging(spec.name) as staged, storage_errors(staged):
        written = write_shares(staged, plan, shares, encoded, progress)
        files = {file: its.record for file, its in written.items()}
        record = PartRecord(
            format_version=1,
            origin=origin,
            encoder=encoder_name(),
            files=files,
            errors={name: tuple(chunks) for name, chunks in errors.items()},
        )
        repository.parts.store(spec.name, origin.name, dump_record(record), staged, files, progress)
    ranges = [rows for share in shares for rows in share.ranges]
    return PublishedPart(
        part=part,
        parts=parts,
        location=repository.parts.where(spec.name, origin.name),
        rows=sum(rows.rows for rows in ranges),
        fp32_bytes=sum(rows.fp32_bytes for rows in ranges),
        table_bytes=sum(file.bytes for file in files.values()),
        files=tuple(files),
    )


def check_parts(parts: int, part: int = 1) -> None:
    """Refuse, with InputError, a part out of range, or too many or too few parts."""
    if not 1 <= parts <= MOST_PARTS:
        raise InputError(f"parts: expected 1 to {MOST_PARTS}, got {parts}")
    if not 1 <= part <= parts:
        raise InputError(f"part: expected 1 to {parts}, got {part}")
