"""A chart of the planner's scaling curve, both axes logarithmic."""

import math
from collections.abc import Sequence

from serving.bench.charts.line_chart import Axis, Series, line_chart


def scaling_chart(title: str, series: Sequence[Series]) -> str:
    """Draw up to three series of tables and seconds, and N log N through the first's last point."""
    ours = series[0].points
    last_tables, last_seconds = ours[-1]
    unit = last_seconds / (last_tables * math.log(last_tables))
    guide = Series("N log N", tuple((n, unit * n * math.log(n)) for n, _ in ours))
    points = [point for one in (*series, guide) for point in one.points]
    lowest, highest = min(n for n, _ in points), max(n for n, _ in points)
    powers = (10.0**power for power in range(math.ceil(math.log10(lowest)), 9))
    ticks = sorted({*(tables for tables in powers if tables <= highest), highest})
    return line_chart(
        title,
        Axis("tables", lowest, highest, ticks),
        Axis.decades("seconds to plan", (seconds for _, seconds in points)),
        series,
        guide=guide,
    )
