"""Where the follower says what is to be held, and each worker what of it it has.

In anonymous shared memory that forks inherit: made before any fork. Each text has one writer.
"""

from serving.releases import RELEASES, REPORT, Releases, Report
from serving.shared_document import SharedDocument

# Pages that nothing was written to cost no memory.
_RELEASES_BYTES = 16 * 2**20
_REPORT_BYTES = 2**20


class Board:
    """The releases of one server, and its workers' reports."""

    def __init__(self, workers: int) -> None:
        """Begins with no releases, and no worker attached.

        Args:
            workers: processes that answer requests.
        """
        self._releases = SharedDocument(_RELEASES_BYTES)
        self._releases.write(RELEASES.dump_json(Releases()))
        self._reports = tuple(SharedDocument(_REPORT_BYTES) for _ in range(workers))

    @property
    def sequence(self) -> int:
        """Changes whenever the releases do; cheap."""
        return self._releases.sequence

    def post(self, releases: Releases) -> None:
        """Says what is to be held; the follower's alone."""
        self._releases.write(RELEASES.dump_json(releases))

    def releases(self) -> tuple[int, Releases]:
        """The sequence and the releases."""
        sequence, text = self._releases.read()
        return sequence, RELEASES.validate_json(text)

    def report(self, worker: int, report: Report) -> None:
        """Says what a worker has; the first time attaches it, and it is waited for from then on.

        Args:
            worker: its number, from 0.
            report: what it has.
        """
        self._reports[worker].write(REPORT.dump_json(report))

    def detach(self, worker: int) -> None:
        """Forgets a worker that is dead.

        Args:
            worker: its number, from 0.
        """
        self._reports[worker].write(b"")

    def reports(self) -> list[Report]:
        """Those of the workers that are attached."""
        texts = [document.read()[1] for document in self._reports]
        return [REPORT.validate_json(text) for text in texts if text]
