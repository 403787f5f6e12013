"""Panel types of the dashboards, in one style."""

from dataclasses import dataclass

from grafana_foundation_sdk.builders.common import (
    GraphThresholdsStyleConfig as ThresholdsStyle,
)
from grafana_foundation_sdk.builders.common import (
    ReduceDataOptions,
    ScaleDistributionConfig,
    StackingConfig,
    VizLegendOptions,
    VizTooltipOptions,
)
from grafana_foundation_sdk.builders.dashboard import ThresholdsConfig
from grafana_foundation_sdk.builders.heatmap import HeatmapColorOptions, YAxisConfig
from grafana_foundation_sdk.builders.heatmap import Panel as HeatmapPanel
from grafana_foundation_sdk.builders.prometheus import Dataquery
from grafana_foundation_sdk.builders.stat import Panel as StatPanel
from grafana_foundation_sdk.builders.timeseries import Panel as GraphPanel
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    BigValueGraphMode,
    GraphGradientMode,
    GraphThresholdsStyleMode,
    LegendDisplayMode,
    LegendPlacement,
    LineInterpolation,
    ScaleDistribution,
    SortOrder,
    StackingMode,
    TooltipDisplayMode,
    VisibilityMode,
)
from grafana_foundation_sdk.models.dashboard import (
    DataSourceRef,
    DynamicConfigValue,
    Threshold,
    ThresholdsMode,
)
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode, HeatmapColorScale
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

__all__ = ["DATASOURCE", "Query", "Text", "dashed", "graph", "heatmap", "stat"]

DATASOURCE = DataSourceRef(type_val="prometheus", uid="${datasource}")
_WHOLE_WIDTH = 24
_GRAPH_HEIGHT = 8
_STAT_HEIGHT = 4


@dataclass(frozen=True, slots=True)
class Text:
    """A panel's title, and a description of its meaning and of what to do when it looks bad."""

    title: str
    description: str


@dataclass(frozen=True, slots=True)
class Query:
    """PromQL with the dashboard's variables, and a legend; `exemplars` draws traced requests."""

    expression: str
    legend: str
    exemplars: bool = False


def graph(
    text: Text,
    *queries: Query,
    unit: str,
    width: int = 8,
    stacked: bool = False,
    warn: float | None = None,
    bad: float | None = None,
    steps: bool = False,
    most: float | None = None,
) -> GraphPanel:
    """Lines over time, one for every series of each query.

    Args:
        unit: Grafana's name.
        width: of the 24 columns.
        warn, bad: where the colour changes to yellow, and to red.
        steps: values that jump, as versions do.
        most: top of the axis.
    """
    panel = (
        GraphPanel()
        .title(text.title)
        .description(text.description)
        .datasource(DATASOURCE)
        .unit(unit)
        .span(width)
        .height(_GRAPH_HEIGHT)
        .min(0)
        .line_width(0 if stacked else 1.5)
        .fill_opacity(70 if stacked else 8)
        .gradient_mode(GraphGradientMode.NONE if stacked else GraphGradientMode.OPACITY)
        .show_points(VisibilityMode.NEVER)
        .line_interpolation(LineInterpolation.STEP_AFTER if steps else LineInterpolation.LINEAR)
        .legend(
            VizLegendOptions()
            .show_legend(True)
            .display_mode(LegendDisplayMode.TABLE)
            .placement(LegendPlacement.BOTTOM)
            .calcs(["lastNotNull", "max"])
        )
        .tooltip(VizTooltipOptions().mode(TooltipDisplayMode.MULTI).sort(SortOrder.DESCENDING))
    )
    if stacked:
        panel.stacking(StackingConfig().mode(StackingMode.NORMAL).group("A"))
    if most is not None:
        panel.max(most)
    if warn is not None or bad is not None:
        panel.thresholds(_thresholds(warn, bad))
        style = ThresholdsStyle().mode(GraphThresholdsStyleMode.DASHED)
        panel.thresholds_style(style)
    for query in queries:
        panel.with_target(_target(query, len(panel.build().targets or [])))
    return panel


def stat(
    text: Text,
    query: Query,
    *,
    unit: str,
    width: int = 4,
    warn: float | None = None,
    bad: float | None = None,
    decimals: int | None = None,
) -> StatPanel:
    """A large number for each series, with its course behind it.

    Args:
        unit: Grafana's name.
        width: of the 24 columns.
        warn, bad: where the colour changes to yellow, and to red; if `bad` is lower, low values
            are bad.
        decimals: None: as many as fit.
    """
    panel = (
        StatPanel()
        .title(text.title)
        .description(text.description)
        .datasource(DATASOURCE)
        .unit(unit)
        .span(width)
        .height(_STAT_HEIGHT)
        .no_value("none")
        .graph_mode(BigValueGraphMode.AREA)
        .color_mode(BigValueColorMode.VALUE)
        .reduce_options(ReduceDataOptions().calcs(["lastNotNull"]))
        .thresholds(_thresholds(warn, bad))
        .with_target(_target(query, 0))
    )
    return panel if decimals is None else panel.decimals(decimals)


def heatmap(
    text: Text, histogram: str, *, unit: str, width: int = 12, decimals: int | None = None
) -> HeatmapPanel:
    """A histogram over time: the darker a cell, the more observations it had.

    Args:
        histogram: expression whose series are buckets, labelled `le`.
        unit: of the boundaries, by Grafana's name.
        width: of the 24 columns.
        decimals: of the boundaries; None: as many as fit.
    """
    target = _target(Query(histogram, "{{le}}"), 0).format(PromQueryFormat.HEATMAP)
    axis = YAxisConfig().unit(unit)
    if decimals is not None:
        axis.decimals(decimals)
    return (
        HeatmapPanel()
        .title(text.title)
        .description(text.description)
        .datasource(DATASOURCE)
        .span(width)
        .height(_GRAPH_HEIGHT)
        .calculate(False)
        .cell_gap(0)
        .color(
            HeatmapColorOptions()
            .mode(HeatmapColorMode.SCHEME)
            .scheme("Turbo")
            .scale(HeatmapColorScale.EXPONENTIAL)
            .exponent(0.4)
            .steps(64)
            .fill("dark-blue")
        )
        .scale_distribution(ScaleDistributionConfig().type(ScaleDistribution.LINEAR))
        .y_axis(axis)
        .mode(TooltipDisplayMode.SINGLE)
        .show_y_histogram()
        .show_color_scale(True)
        .show_legend()
        .with_target(target)
    )


def dashed(panel: GraphPanel, series: str) -> GraphPanel:
    """Draws a named series as a dashed line without an area, for a limit."""
    return panel.override_by_name(
        series,
        [
            DynamicConfigValue("custom.lineStyle", {"fill": "dash", "dash": [8, 6]}),
            DynamicConfigValue("custom.lineWidth", 2),
            DynamicConfigValue("custom.fillOpacity", 0),
            DynamicConfigValue("custom.stacking", {"mode": "none"}),
            DynamicConfigValue("color", {"mode": "fixed", "fixedColor": "red"}),
        ],
    )


def _target(query: Query, position: int) -> Dataquery:
    return (
        Dataquery()
        .ref_id(chr(ord("A") + position))
        .datasource(DATASOURCE)
        .expr(query.expression)
        .legend_format(query.legend)
        .range()
        .exemplar(query.exemplars)
    )


def _thresholds(warn: float | None, bad: float | None) -> ThresholdsConfig:
    """Green up to `warn`, then yellow, red from `bad`; reversed where bad is lower."""
    low_is_bad = warn is not None and bad is not None and bad < warn
    colours = ("red", "yellow", "green") if low_is_bad else ("green", "yellow", "red")
    limits = (bad, warn) if low_is_bad else (warn, bad)
    steps = [Threshold(color=colours[0])]
    for colour, limit in zip(colours[1:], limits, strict=True):
        if limit is not None:
            steps.append(Threshold(value=limit, color=colour))
    return ThresholdsConfig().mode(ThresholdsMode.ABSOLUTE).steps(steps)
