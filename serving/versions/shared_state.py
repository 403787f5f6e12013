"""State shared by a server's processes: desired versions, loaded versions, load requests.

In anonymous shared memory, created before any fork. Each text has one writer, except for the load
requests.
"""

from serving.host.shared_document import LockedDocument, SharedDocument
from serving.metrics.families.model_families import OPEN_PHASE
from serving.versions.state import (
    LOAD_REQUESTS,
    RELEASES,
    REPORT,
    DesiredState,
    LatestRequests,
    LoadRequest,
    WorkerReport,
)

# Pages that nothing was written to cost no memory.
_RELEASES_BYTES = 16 * 2**20
_REPORT_BYTES = 2**20
_LOAD_REQUESTS_BYTES = 2**20
# The oldest are evicted: they were applied long ago.
_MOST_LOAD_REQUESTS = 512


class SharedState:
    """Releases of a server, and its workers' reports."""

    def __init__(self, workers: int) -> None:
        self._releases = SharedDocument(_RELEASES_BYTES)
        self._releases.write(RELEASES.dump_json(DesiredState()))
        self._load_requests: LockedDocument[LatestRequests] = LockedDocument(
            _LOAD_REQUESTS_BYTES, LOAD_REQUESTS, {}
        )
        self._reports = tuple(SharedDocument(_REPORT_BYTES) for _ in range(workers))

    @property
    def sequence(self) -> int:
        """Changes whenever the releases do; cheap."""
        return self._releases.sequence

    def post(self, releases: DesiredState) -> None:
        """Sets the desired state; only the repository watcher calls."""
        self._releases.write(RELEASES.dump_json(releases))

    def releases(self) -> tuple[int, DesiredState]:
        """The sequence and the releases."""
        sequence, text = self._releases.read()
        return sequence, RELEASES.validate_json(text)

    def report(self, worker: int, report: WorkerReport) -> None:
        """Sets the report of a worker (from 0).

        From the first one on, loads wait for the worker.
        """
        self._reports[worker].write(REPORT.dump_json(report))

    def detach(self, worker: int, reason: str) -> None:
        """Removes a dead worker, by its number from 0.

        A version that it was opening has failed for `reason`: its successor would die of it too.
        """
        report = self._report_of(worker)
        if report is None or not report.opening:
            self._reports[worker].write(b"")
            return
        failed = (OPEN_PHASE, f"{reason} while it opened the version")
        self.report(worker, WorkerReport(failed={report.opening: failed}))

    def failed(self, worker: int) -> dict[int, tuple[str, str]]:
        """Failures that a worker's predecessor reported."""
        report = self._report_of(worker)
        return {} if report is None else dict(report.failed)

    def reports(self) -> list[WorkerReport]:
        """Reports of the attached workers."""
        reports = [self._report_of(worker) for worker in range(len(self._reports))]
        return [report for report in reports if report is not None]

    def _report_of(self, worker: int) -> WorkerReport | None:
        text = self._reports[worker].read()[1]
        return REPORT.validate_json(text) if text else None

    @property
    def load_requests_sequence(self) -> int:
        """Changes whenever the load requests do; cheap."""
        return self._load_requests.sequence

    def load_request(self, model: str, *, wanted: bool) -> int:
        """Records a client's request to load (`wanted`) or unload; any process may call.

        Returns its serial, which the repository watcher confirms.
        """
        serial = 0

        def add(load_requests: LatestRequests) -> LatestRequests:
            nonlocal serial
            serial = 1 + max(
                (load_request.serial for load_request in load_requests.values()), default=0
            )
            latest = sorted(load_requests.items(), key=lambda item: item[1].serial)[
                1 - _MOST_LOAD_REQUESTS :
            ]
            return {**dict(latest), model: LoadRequest(serial, wanted)}

        self._load_requests.change(add)
        return serial

    def load_requests(self) -> LatestRequests:
        """Latest load request of each model."""
        return self._load_requests.read()[1]
