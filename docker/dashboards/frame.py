"""Common parts of all dashboards: variables, the annotation of versions, links, refresh."""

from collections.abc import Mapping, Sequence

from grafana_foundation_sdk.builders.dashboard import (
    Dashboard,
    DashboardLink,
    DatasourceVariable,
    QueryVariable,
    Row,
)
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models.dashboard import (
    AnnotationQuery,
    DashboardCursorSync,
    DashboardLinkType,
    Panel,
    VariableOption,
    VariableRefresh,
    VariableSort,
)

from dashboards.panels import DATASOURCE
from dashboards.selectors import of_model

_TAG = "sharded-infer"
_ALL = VariableOption(text="All", value="$__all", selected=True)
# A version that was not served an interval ago.
NEW_VERSION = (
    f'count_values by (model) ("version", {of_model("sharded_infer_served_version")} > 0)'
    f' unless on (model, version) count_values by (model) ("version",'
    f" {of_model('sharded_infer_served_version')} offset $__rate_interval > 0)"
)


class _VersionAnnotation(AnnotationQuery):
    """An annotation with the fields of Prometheus' own kind, which the SDK's type lacks."""

    def to_json(self) -> dict[str, object]:
        return {
            **super().to_json(),
            "titleFormat": "{{model}} serves version {{version}}",
            "tagKeys": "model,version",
            "step": "15s",
        }


class _VersionAnnotationBuilder(Builder[AnnotationQuery]):
    def build(self) -> AnnotationQuery:
        return _VersionAnnotation(
            name="Versions",
            datasource=DATASOURCE,
            enable=True,
            icon_color="purple",
            expr=NEW_VERSION,
        )


def framed(uid: str, title: str, description: str) -> Dashboard:
    """A dashboard without panels."""
    links = DashboardLink("sharded-infer").type(DashboardLinkType.DASHBOARDS).tags([_TAG])
    return (
        Dashboard(title)
        .uid(uid)
        .description(description)
        .tags([_TAG])
        .timezone("browser")
        .time("now-1h", "now")
        .refresh("30s")
        .tooltip(DashboardCursorSync.CROSSHAIR)
        .editable()
        .variables(
            [
                DatasourceVariable("datasource").label("Data source").type("prometheus"),
                _variable("job", "Job", ""),
                _variable("instance", "Instance", 'job=~"$job"'),
                _variable("model", "Model", 'job=~"$job",instance=~"$instance"'),
                _variable(
                    "version", "Version", 'job=~"$job",instance=~"$instance",model=~"$model"'
                ),
            ]
        )
        .annotation(_VersionAnnotationBuilder())
        .link(links.include_vars(True).keep_time(True))
    )


def _variable(label: str, title: str, matchers: str) -> QueryVariable:
    # Of successful requests, so that unknown models are no choice.
    metric = f"sharded_infer_request_seconds_count{{{matchers}}}"
    return (
        QueryVariable(label)
        .label(title)
        .datasource(DATASOURCE)
        .query({"query": f"label_values({metric}, {label})", "refId": label})
        .refresh(VariableRefresh.ON_TIME_RANGE_CHANGED)
        .sort(VariableSort.NUMERICAL_ASC if label == "version" else VariableSort.ALPHABETICAL_ASC)
        .multi(True)
        .include_all(True)
        .all_value(".*")
        .current(_ALL)
    )


def filled(dashboard: Dashboard, rows: Mapping[str, Sequence[Builder[Panel]]]) -> Dashboard:
    """Adds the panels of each titled row to a dashboard."""
    for title, panels in rows.items():
        dashboard.with_row(Row(title))
        for panel in panels:
            dashboard.with_panel(panel)
    return dashboard
