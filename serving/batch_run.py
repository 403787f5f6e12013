"""A batch of predict calls: run on the model, answered, counted."""

from collections.abc import Sequence
from time import monotonic

from serving.batcher import Batch
from serving.call import Call
from serving.job import Job
from serving.lane import Ticket, TicketState
from serving.request_reports import RequestReports
from serving.thread_usage import Reading, read_usage
from serving.version_metrics import Answered
from sharded_infer.errors import ShardedInferError
from sharded_infer.executor import Execution, run_batch

# Why a request left the queue, as metrics have it.
DROPPED = {
    TicketState.EXPIRED: "expired",
    TicketState.INFEASIBLE: "deadline",
    TicketState.WITHDRAWN: "cancelled",
}


class BatchRun:
    """What the dispatcher has run: any number of batches side by side, each on a thread."""

    def __init__(self, reports: RequestReports | None) -> None:
        """Keeps who is told.

        Args:
            reports: told of each request; None: nothing is told beside the counts.
        """
        self._reports = reports

    def __call__(self, jobs: Sequence[Job]) -> Sequence[bytes | Exception]:
        """Runs jobs of one version together.

        Returns:
            For each its serialized response, or why there is none.
        """
        calls: list[Call] = [job.work for job in jobs]
        model = calls[0].snapshot.model
        try:
            before = None if self._reports is None else read_usage()
            executions = run_batch(model, [call.model_input for call in calls])
            usage = None if before is None else (before, read_usage())
            return self._responses(jobs, calls, executions, usage)
        except Exception as error:
            if len(calls) == 1:
                return [error]
        # One of them is to blame: each by itself, so that the others are answered.
        return [result for job in jobs for result in self([job])]

    def _responses(
        self,
        jobs: Sequence[Job],
        calls: Sequence[Call],
        executions: Sequence[Execution],
        usage: tuple[Reading, Reading] | None,
    ) -> list[bytes | Exception]:
        """The responses of a batch, all counted.

        Written here, one after another, not by each request's own thread: code and data are at
        hand.
        """
        responses: list[bytes | Exception] = []
        counts: list[Answered] = []
        told: list[tuple[Job, Execution]] = []
        now = monotonic()
        for job, call, execution in zip(jobs, calls, executions, strict=True):
            began = now
            queued = max(0.0, job.started - call.decoded)
            try:
                responses.append(call.encode(execution, queued))
            except ShardedInferError as error:
                # Its client's shared memory: the others of the batch have theirs.
                responses.append(error)
                continue
            now = monotonic()
            told.append((job, execution))
            counts.append(
                (
                    call.model_input.batch_size,
                    call.decoded - call.started,
                    queued,
                    execution.lookup_seconds,
                    execution.tower_seconds,
                    now - began,
                    now - call.started,
                    execution.ids_outside,
                )
            )
        metrics = calls[0].snapshot.metrics
        if counts:
            whole = 0
            if len(counts) != len(calls):
                whole = sum(call.model_input.batch_size for call in calls)
            metrics.answered_many(counts, whole)
        if metrics.lookups is not None:
            first = executions[0]
            metrics.lookups.looked_up(first.work, first.batch, first.scores)
        if self._reports is not None and usage is not None:
            self._reports.answered(told, counts, usage)
        return responses


def count_batch(batch: Batch, seconds: float) -> None:
    """Counts a batch that has run.

    Args:
        batch: the batch.
        seconds: how long it took its run slot.
    """
    call: Call = batch.tickets[0].item.work
    call.snapshot.metrics.ran_batch(
        requests=len(batch.tickets),
        samples=batch.samples,
        seconds=seconds,
        predicted=batch.predicted,
    )
    show_queue(batch.tickets[0].item)


def count_dropped(ticket: Ticket) -> None:
    """Counts a request that left the queue without being run."""
    call: Call = ticket.item.work
    call.snapshot.metrics.refused(DROPPED[ticket.state])
    show_queue(ticket.item)


def show_queue(job: Job) -> None:
    """Says what waits, after a request came or went."""
    call: Call = job.work
    lane = job.ticket.lane
    call.snapshot.metrics.queue(requests=len(lane), samples=lane.samples)
