"""One host's share of a version in this process: its rows and id maps, and no tower."""

from sharded_infer.artifacts.artifact import Artifact
from sharded_infer.artifacts.mapped_id_maps import open_id_maps
from sharded_infer.artifacts.table_memory import TableMemory
from sharded_infer.errors import PlanError
from sharded_infer.lookups.held.held_rows import HeldRows
from sharded_infer.lookups.placement import (
    id_ranges,
    mapped_by_hosts,
    place_stored,
    share_digest,
    share_of,
)
from sharded_infer.lookups.share_lookups import ShareLookups
from sharded_infer.planning.plan import Plan
from sharded_infer.progress import Progress, no_progress


class ModelShare:
    """A shard host's part of a version.

    Attributes:
        digest: of the share; a front asks only hosts with its own digest of it.
        table_bytes: of the rows that the host holds.
        id_maps: by table, of those whose raw ids the host maps.
        lookups: answers fronts.
    """

    def __init__(
        self,
        artifact: Artifact,
        plan: Plan,
        host: int,
        *,
        memory: TableMemory | None = None,
        row_memory_bytes: int | None = None,
        progress: Progress = no_progress,
    ) -> None:
        """Maps or copies the share's rows; files are not verified.

        Arguments and errors are those of `open_model`; PlanError if the host has no rows.
        """
        self.artifact, self.plan, self.host = artifact, plan, host
        spec, placed = artifact.manifest.model_spec(), place_stored(plan, artifact)
        share = share_of(placed, host)
        if not share:
            known = ", ".join(str(number) for number in sorted({piece.host for piece in placed}))
            raise PlanError(
                f"topology {plan.topology.name!r}: host {host} holds no rows, expected one of "
                f"{known}"
            )
        mapped = mapped_by_hosts(placed, spec)
        self.digest = share_digest(share, mapped)
        self.table_bytes = sum(
            piece.rows * piece.table.row_format.row_bytes(piece.columns) for piece in share
        )
        self.memory = TableMemory(spec.serving.memory) if memory is None else memory
        own = mapped & {piece.table.name for piece in share}
        ids = id_ranges(artifact.manifest, own, share)
        self.id_maps = open_id_maps(artifact, self.memory, tables=own, ranges=ids)
        self.rows = HeldRows(
            artifact,
            share,
            self.memory,
            is_share=True,
            row_memory_bytes=row_memory_bytes,
            progress=progress,
        )
        self.lookups = ShareLookups(spec, placed, self.rows.pieces, host, id_maps=self.id_maps)

    @property
    def name(self) -> str:
        """The model's name."""
        return self.artifact.manifest.model

    @property
    def version(self) -> int:
        """The version's number."""
        return self.artifact.manifest.version
