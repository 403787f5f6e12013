"""The hosts of a plan: their tables, and their bytes exchanged with a front."""

from kernels.wording import counted
from sharded_infer.byte_sizes import size_text
from sharded_infer.planning.cost_model import CostModel
from sharded_infer.planning.front_traffic import table_traffic, total, traffic_by_host
from sharded_infer.planning.plan_result import PlanResult
from sharded_infer.reports.html.document import section
from sharded_infer.reports.html.table import number_cell, sortable_table
from sharded_infer.reports.html.text import time_text
from sharded_infer.reports.plan.figures import HostReport, host_reports

_HEADS = (
    "#Host", "Role", "#Tables", "#Memory", "#Sent", "#Received", "#Time", "#Of request",
)  # fmt: skip


def shows_hosts(load: CostModel) -> bool:
    """True if a plan has several hosts."""
    topology = load.topology
    return topology.front is not None or len({device.host for device in topology.devices}) > 1


def hosts_section(result: PlanResult, load: CostModel) -> str:
    """Each host's tables and its bytes of a request; empty for a plan of one machine."""
    if not shows_hosts(load):
        return ""
    rows = map(_row, host_reports(result, load))
    return section("Hosts", network_words(result, load), sortable_table("Hosts", _HEADS, rows))


def network_words(result: PlanResult, load: CostModel) -> str:
    """The network costs of a request, as sentences."""
    plan = result.plan
    request = f"a request of {counted(load.batch, 'sample', ',')}"
    if plan.topology.front is None:
        return (
            f"Bytes of {request} from a front that holds nothing. The topology names no front: "
            "times are those of towers on every host."
        )
    by_host = traffic_by_host(plan, load)
    both = total(by_host.values())
    asked = {s.table for s in plan.shards if plan.topology.devices[s.rank].host in by_host}
    kept = load.uses.keys() - asked
    saved = total(table_traffic(load.uses[name], load.batch) for name in kept)
    return (
        f"For {request} the front asks {counted(len(by_host), 'host')}: it sends "
        f"{size_text(both.sent)} and receives {size_text(both.received)}, which takes "
        f"{time_text(result.figures.front_seconds)} of its time. It keeps "
        f"{counted(len(kept), 'table', ',')}, which saves {size_text(saved.total)}."
    )


def _row(report: HostReport) -> tuple[str, ...]:
    is_front = report.role == "front"
    return (
        f'<th scope="row" class="n" data-v="{report.host}">{report.host}</th>',
        f'<td class="keep">{report.role}</td>',
        number_cell(f"{report.tables:,}", report.tables),
        number_cell(size_text(report.bytes), report.bytes),
        number_cell("" if is_front else size_text(report.sent_bytes), report.sent_bytes),
        number_cell("" if is_front else size_text(report.received_bytes), report.received_bytes),
        number_cell(time_text(report.seconds), report.seconds),
        number_cell(f"{report.share:.1%}", report.share),
    )
