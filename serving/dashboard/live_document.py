"""Fields of `/api/live`: the server, its models, recent events, and the metrics."""

from collections.abc import Callable, Sequence
from typing import Any
from urllib.parse import urlencode

from serving.dashboard.plans import DrawnPlan
from serving.dashboard.reading import Key, Reading, Series
from serving.dashboard.swaps import DEFAULT
from serving.versions.state import DesiredState, ModelState

# Changes with the meaning of existing fields, not with new ones.
API_VERSION = 1

PlanOf = Callable[[str], DrawnPlan | None]


def models_fields(releases: DesiredState, plan_of: PlanOf) -> list[dict[str, Any]]:
    """Fields of the models and their known versions, with plans by a version's folder."""
    return [_model_fields(model, plan_of) for _, model in sorted(releases.models.items())]


def metrics_fields(readings: Sequence[Reading]) -> dict[str, Any]:
    """Families, series, and their values at each reading (at least one, chronological)."""
    families = {
        name: {"kind": family.kind, "help": family.help}
        for name, family in readings[-1].families.items()
    }
    # By identity, in order of first occurrence; the last boundaries count.
    known: dict[Key, Series] = {}
    # Most readings share their series.
    for shared in {id(reading.series): reading.series for reading in readings}.values():
        known.update((one.key, one) for one in shared)
    series = [
        {"family": one.family, "labels": dict(one.labels), "boundaries": one.boundaries}
        for one in known.values()
    ]
    rows = []
    for reading in readings:
        values = reading.values()
        rows.append({"at": reading.at, "values": [values.get(key) for key in known]})
    return {"families": families, "series": series, "readings": rows}


def _model_fields(model: ModelState, plan_of: PlanOf) -> dict[str, Any]:
    names: dict[int, list[str]] = {}
    for name, version in model.names.items():
        names.setdefault(version, []).append(name or DEFAULT)
    versions = []
    for assigned_version in model.assigned:
        plan = plan_of(assigned_version.path)
        query = urlencode({"model": model.model, "version": assigned_version.version})
        versions.append(
            {
                "version": assigned_version.version,
                "state": "ready" if assigned_version.ready else "loading",
                "names": sorted(names.get(assigned_version.version, ())),
                "created": assigned_version.created,
                "reason": "",
                "provenance": "" if plan is None else plan.provenance,
                "plan": None
                if plan is None
                else {
                    "topology": plan.topology,
                    "ranks": plan.ranks,
                    "tables": plan.tables,
                    "table_bytes": plan.table_bytes,
                    "url": f"dashboard/plan?{query}",
                },
            }
        )
    for failure in model.failures:
        reason = f"{failure.phase}: {failure.reason}"
        versions.append(_absent(failure.version, "failed", reason))
    known = {version["version"] for version in versions}
    if model.preparing and model.preparing not in known:
        versions.append(_absent(model.preparing, "fetching", ""))
    return {
        "name": model.model,
        "default": model.names.get("", 0),
        "published": len(model.published),
        "versions": sorted(versions, key=lambda version: -version["version"]),
    }


def _absent(version: int, state: str, reason: str) -> dict[str, Any]:
    return {
        "version": version,
        "state": state,
        "names": [],
        "created": 0.0,
        "reason": reason,
        "provenance": "",
        "plan": None,
    }
