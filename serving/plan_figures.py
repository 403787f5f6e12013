"""The two drawings of a plan, without a page around them: time and memory of each rank."""

from serving.plan_drawing import MEMORY, TIME, Drawing
from serving.plan_parts import hottest_tables, parts_by_rank
from sharded_infer.load_model import LoadModel, table_uses
from sharded_infer.plan import Plan
from sharded_infer.planning.result import PlanResult, figures_of
from sharded_infer.spec import ModelSpec


def render_plan_figures(plan: Plan, spec: ModelSpec) -> str:
    """A published plan, drawn as devices and tables.

    Args:
        plan: the plan.
        spec: of the model; its statistics say how often each table is looked up.

    Returns:
        HTML of two figures, for a page with the style `plan_style.DRAWING_STYLE`.
    """
    load = LoadModel({use.table.name: use for use in table_uses(spec)}, plan.topology)
    # What the best plan would cost is not looked for: that takes a planner.
    result = PlanResult(plan, figures_of(plan, load), bound_seconds=0.0, decisions=())
    ranks = parts_by_rank(result, load)
    hot = {table.table: number for number, table in enumerate(hottest_tables(ranks), start=1)}
    caption = f"Predicted for a batch of {load.batch:,}. The slowest rank sets the latency."
    memory = "Bytes of tables that each rank holds."
    return "\n".join(
        (
            Drawing(TIME, ranks, load, hot).figure("Time", caption),
            Drawing(MEMORY, ranks, load, hot).figure("Memory", memory),
        )
    )
