"""The plans of the versions that a server holds, drawn once each."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from serving.dashboard.answer import HTML, Content
from serving.plan_figures import render_plan_figures
from sharded_infer.artifact import open_artifact
from sharded_infer.errors import ShardedInferError
from sharded_infer.pages.text import escaped

_log = logging.getLogger("sharded_infer")


@dataclass(frozen=True, slots=True)
class DrawnPlan:
    """A version's plan.

    Attributes:
        topology: its name; empty where it cannot be read.
        ranks: devices of the topology.
        tables: of the model.
        table_bytes: of the version's tables.
        content: the drawing, as a part of a page.
        provenance: where the version came from, in its publisher's words; empty: it says nothing.
    """

    topology: str
    ranks: int
    tables: int
    table_bytes: int
    content: Content
    provenance: str = ""


class Plans:
    """Drawn plans by the folder of their version. One thread draws, any may read."""

    def __init__(self, topology: str | None) -> None:
        """Begins with none.

        Args:
            topology: which plan the server uses; None: each version's first.
        """
        self._topology = topology
        self._drawn: dict[str, DrawnPlan] = {}

    @property
    def drawn(self) -> dict[str, DrawnPlan]:
        """All of them; another object whenever they change."""
        return self._drawn

    def get(self, path: str) -> DrawnPlan | None:
        """The plan of the version in a folder, once it is drawn."""
        return self._drawn.get(path)

    def draw(self, paths: Iterable[str]) -> None:
        """Draws the plans of the versions in these folders, and forgets all others.

        Args:
            paths: the folders; those known are not read again.
        """
        known = self._drawn
        self._drawn = {path: known.get(path) or self._draw(Path(path)) for path in paths}

    def _draw(self, path: Path) -> DrawnPlan:
        try:
            artifact = open_artifact(path)
            plan = artifact.plan(self._topology)
            figures = render_plan_figures(plan, artifact.manifest.model_spec())
        except (ShardedInferError, OSError) as error:
            # The page can do without; whoever serves the version says what is wrong with it.
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
