"""TorchRec's planner, which is optional, on the same tables, with its plan converted to ours."""

import pickle
import signal
import subprocess
import sys
from dataclasses import dataclass
from enum import StrEnum

from benchmarks.plan.families import PlanCase
from serving.bench.parts.installed_torchrec import torchrec_is_installed
from sharded_infer.errors import PlanError
from sharded_infer.planning.plan import Plan, check_plan

_PROCESS = "benchmarks.plan.torchrec_process"
_START_SECONDS = 300  # to import TorchRec and build its modules; beyond, something is wrong


class Search(StrEnum):
    """TorchRec's searches: its inference default, table-wise only; or all kinds of sharding."""

    QUICK = "quick"
    FULL = "full"


class Outcome(StrEnum):
    """Outcome of a run."""

    PLANNED = "planned"
    TIMED_OUT = "timed out"
    REFUSED = "no plan"
    NOT_RUN = "not run"
    NOT_INSTALLED = "not installed"


@dataclass(frozen=True, slots=True)
class TorchRecRun:
    """Result of TorchRec's planner, with seconds (the median if short); None without a plan."""

    outcome: Outcome
    seconds: float | None = None
    plan: Plan | None = None


def run_torchrec(case: PlanCase, search: Search, limit_seconds: float) -> TorchRecRun:
    """Plan int8 tables on equal GPUs with TorchRec, in a process that is killed at a time limit."""
    if not torchrec_is_installed():
        return TorchRecRun(Outcome.NOT_INSTALLED)
    request = case, search.value, limit_seconds
    try:
        done = subprocess.run(  # noqa: S603 - our own module
            [sys.executable, "-m", _PROCESS],
            input=pickle.dumps(request),
            capture_output=True,
            timeout=_START_SECONDS + limit_seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return TorchRecRun(Outcome.TIMED_OUT)
    if done.returncode == -signal.SIGALRM:
        return TorchRecRun(Outcome.TIMED_OUT)
    if done.returncode != 0:
        words = done.stderr.decode(errors="replace").strip().splitlines()
        last = (words or [f"exit code {done.returncode}"])[-1]
        raise PlanError(f"TorchRec's planner failed on {case.family!r}: {last}")
    seconds, shards = pickle.loads(done.stdout)  # noqa: S301 - of our own process
    if seconds is None:
        return TorchRecRun(Outcome.REFUSED)
    # Row-wise shards of a table with fewer rows than ranks are empty on the last ranks.
    plan = Plan(case.topology, tuple(s for s in shards if s.rows and s.columns))
    try:
        check_plan(plan, {name: use.table for name, use in case.uses.items()})
    except PlanError:
        # TorchRec does not count the scale and bias of a row.
        return TorchRecRun(Outcome.REFUSED, seconds)
    return TorchRecRun(Outcome.PLANNED, seconds, plan)
