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
    versions = [
        _version_fields(
            one.version,
            "ready" if one.ready else "loading",
            names=sorted(names.get(one.version, ())),
            created=one.created,
            **_plan_fields(model.model, one.version, plan_of(one.path)),
        )
        for one in model.assigned
    ]
    for failure in model.failures:
        reason = f"{failure.phase}: {failure.reason}"
        versions.append(_version_fields(failure.version, "failed", reason=reason))
    known = {version["version"] for version in versions}
    if model.preparing and model.preparing not in known:
        versions.append(_version_fields(model.preparing, "fetching"))
    return {
        "name": model.model,
        "default": model.names.get("", 0),
        "published": len(model.published),
        "versions": sorted(versions, key=lambda version: -version["version"]),
    }


def _version_fields(version: int, state: str, **fields: Any) -> dict[str, Any]:
    absent = {"names": [], "created": 0.0, "reason": "", "provenance": "", "plan": None}
    return {"version": version, "state": state} | absent | fields


def _plan_fields(model: str, version: int, plan: DrawnPlan | None) -> dict[str, Any]:
    if plan is None:
        return {}
    return {
        "provenance": plan.provenance,
        "plan": {
            "topology": plan.topology,
            "ranks": plan.ranks,
            "tables": plan.tables,
            "table_bytes": plan.table_bytes,
            "url": f"dashboard/plan?{urlencode({'model': model, 'version': version})}",
        },
    }
