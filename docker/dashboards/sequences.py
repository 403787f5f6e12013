"""Panels of sequence models: padding, and savings of the user cache."""

from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import units
from grafana_foundation_sdk.models.dashboard import Panel

from dashboards.panels import Query, Text, graph
from dashboards.selectors import of_version, rate

_POSITIONS = rate(of_version("sharded_infer_sequence_positions_total"))
_USERS = rate(of_version("sharded_infer_user_states_total"))
_EVICTED = rate(of_version("sharded_infer_user_states_evicted_total"))
_BYTES = of_version("sharded_infer_user_cache_bytes")
_USER_POSITIONS = rate(of_version("sharded_infer_user_positions_total"))
_HIT, _KEPT = 'result="hit"', 'result="kept"'


def sequences_and_users() -> list[Builder[Panel]]:
    """Row of a dashboard."""
    hits = f"sum by (model, version, result) ({_USERS})"
    return [
        graph(
            Text(
                "Positions of sequences",
                "What the tower is run on. Much padding means that a batch's sequences have very "
                "different lengths, or that `pad_to` is `max_length`.",
            ),
            Query(f"sum by (model, content) ({_POSITIONS})", "{{model}} {{content}}"),
            unit=units.Short,
            stacked=True,
        ),
        graph(
            Text(
                "User cache: hits",
                "Share of requests whose user's stage was not computed again. If it is low while "
                "states are evicted, `--user-cache-mib` is too small.",
            ),
            Query(
                f"sum by (model) ({rate(of_version('sharded_infer_user_states_total', _HIT))}) "
                f"/ clamp_min(sum by (model) ({hits}), 1e-9)",
                "{{model}}",
            ),
            unit=units.PercentUnit,
        ),
        graph(
            Text(
                "User cache: positions",
                "Share of the positions of histories whose state was not computed again.",
            ),
            Query(
                "sum by (model) "
                f"({rate(of_version('sharded_infer_user_positions_total', _KEPT))}) "
                f"/ clamp_min(sum by (model) ({_USER_POSITIONS}), 1e-9)",
                "{{model}}",
            ),
            unit=units.PercentUnit,
        ),
        graph(
            Text(
                "User cache: memory and evictions",
                "Bytes of the states, and states that had to go a second.",
            ),
            Query(f"sum by (model, version) ({_BYTES})", "{{model}} {{version}} bytes"),
            Query(f"sum by (model, version) ({_EVICTED})", "{{model}} {{version}} evicted"),
            unit=units.Short,
        ),
    ]
