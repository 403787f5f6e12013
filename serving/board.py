"""Where the follower says what is to be held, each worker what it has, and clients what to serve.

In anonymous shared memory that forks inherit: made before any fork. Each text has one writer, apart
from the wishes.
"""

from serving.locked_document import LockedDocument
from serving.releases import RELEASES, REPORT, WISHES, Releases, Report, Wish, Wishes
from serving.shared_document import SharedDocument

# Pages that nothing was written to cost no memory.
_RELEASES_BYTES = 16 * 2**20
_REPORT_BYTES = 2**20
_WISHES_BYTES = 2**20
# The oldest give way: they were taken up long ago.
_MOST_WISHES = 512


class Board:
    """The releases of one server, and its workers' reports."""

    def __init__(self, workers: int) -> None:
        """Begins with no releases, and no worker attached.

        Args:
            workers: processes that answer requests.
        """
        self._releases = SharedDocument(_RELEASES_BYTES)
        self._releases.write(RELEASES.dump_json(Releases()))
        self._wishes: LockedDocument[Wishes] = LockedDocument(_WISHES_BYTES, WISHES, {})
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

    @property
    def wishes_sequence(self) -> int:
        """Changes whenever the wishes do; cheap."""
        return self._wishes.sequence

    def wish(self, model: str, *, wanted: bool) -> int:
        """Says what a client wants of a model; any process may.

        Args:
            model: its name.
            wanted: whether it is to be served.

        Returns:
            The wish's serial, which the follower says again when it has taken it up.
        """
        serial = 0

        def add(wishes: Wishes) -> Wishes:
            nonlocal serial
            serial = 1 + max((wish.serial for wish in wishes.values()), default=0)
            latest = sorted(wishes.items(), key=lambda item: item[1].serial)[1 - _MOST_WISHES :]
            return {**dict(latest), model: Wish(serial, wanted)}

        self._wishes.change(add)
        return serial

    def wishes(self) -> Wishes:
        """The latest wish for each model."""
        return self._wishes.read()[1]
