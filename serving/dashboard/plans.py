"""Plans of a server's versions, each drawn once."""

import hashlib
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from serving.dashboard.answer import HTML, Content
from serving.versions.state import AssignedVersion
from sharded_infer.artifacts.artifact import artifact_of, read_manifest
from sharded_infer.errors import ArtifactError, ShardedInferError
from sharded_infer.reports.html.text import escaped
from sharded_infer.reports.plan.drawing import render_plan_figures

_log = logging.getLogger("sharded_infer")


@dataclass(frozen=True, slots=True)
class DrawnPlan:
    """A drawn plan of a version, as part of a page; its topology is empty if it cannot be read."""

    topology: str
    ranks: int
    tables: int
    table_bytes: int
    content: Content
    provenance: str = ""


class Plans:
    """Drawn plans by the folder of their version. One thread draws, any may read."""

    def __init__(self, topology: str | None) -> None:
        self._topology = topology
        self._drawn: dict[str, DrawnPlan] = {}

    @property
    def drawn(self) -> dict[str, DrawnPlan]:
        """All plans; a new object after each change."""
        return self._drawn

    def get(self, path: str) -> DrawnPlan | None:
        """Plan of a version by its folder; None until it is drawn."""
        return self._drawn.get(path)

    def draw(self, versions: Iterable[AssignedVersion]) -> None:
        """Draws the plans of versions in new folders, and drops those not listed."""
        known = self._drawn
        self._drawn = {
            version.path: known.get(version.path) or self._draw(Path(version.path), version.digest)
            for version in versions
        }

    def _draw(self, path: Path, digest: str) -> DrawnPlan:
        try:
            manifest_text = read_manifest(path)
            # The one whose signature was checked.
            if hashlib.sha256(manifest_text).hexdigest() != digest:
                raise ArtifactError("its manifest has changed since it was verified")
            artifact = artifact_of(path, manifest_text)
            plan = artifact.plan(self._topology)
            figures = render_plan_figures(plan, artifact.manifest.model_spec())
        except (ShardedInferError, OSError) as error:
            # The page works without it; serving the version reports its faults.
            _log.warning("%s: its plan cannot be shown: %s", path, error)
            sentence = f"<p>The plan cannot be shown: {escaped(str(error))}</p>"
            return DrawnPlan("", 0, 0, 0, Content.kept(HTML, sentence.encode()))
        manifest = artifact.manifest
        return DrawnPlan(
            topology=plan.topology.name,
            ranks=len(plan.topology.devices),
            tables=len(manifest.tables),
            table_bytes=manifest.table_bytes,
            content=Content.kept(HTML, figures.encode()),
            provenance="" if manifest.provenance is None else manifest.provenance.text,
        )
