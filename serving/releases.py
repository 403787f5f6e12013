"""What the processes of a server tell each other of versions: who holds what, and who has it.

`Releases` is the follower's: which versions every worker is to hold, and what each name means.
`Report` is a worker's: what of it the worker has loaded, and what it could not.
"""

from dataclasses import field, replace

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from serving.version_policy import DEFAULT_NAME, Situation

# A reason longer than this is cut: it is shown to people.
MOST_REASON = 2000


@dataclass(frozen=True, slots=True)
class Holding:
    """A version that every worker is to hold.

    Attributes:
        key: of this attempt to load it, unique in a server.
        version: its number.
        path: the local folder of its verified files.
        created: when it was published, seconds since 1970.
        ready: whether every worker has it, so that clients may ask for it.
    """

    key: int
    version: int
    path: str
    created: float
    ready: bool = False


@dataclass(frozen=True, slots=True)
class Failure:
    """A version that could not be loaded.

    Attributes:
        version: its number.
        phase: what was being done.
        reason: for people.
        fingerprint: of its files; when that changes it is tried again.
    """

    version: int
    phase: str
    reason: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class ModelReleases:
    """A model's versions, as a server knows them.

    Attributes:
        model: its name.
        published: the repository's, ascending.
        labels: the repository's.
        held: see `Holding`.
        failures: versions that are not tried again.
        names: what each name means; the empty one is the default.
        previous: what it meant before.
        preparing: the version that is being fetched and verified; 0: none.
        wanted: whether it is to be served; a client may say otherwise.
        wish: the last one of a client that was taken up; 0: none was.
        done: the last one after which all that was to be loaded was, or had failed.
        trouble: what kept its versions from being read or fetched since.
    """

    model: str
    published: tuple[int, ...] = ()
    labels: dict[str, int] = field(default_factory=dict)
    held: tuple[Holding, ...] = ()
    failures: tuple[Failure, ...] = ()
    names: dict[str, int] = field(default_factory=dict)
    previous: dict[str, int] = field(default_factory=dict)
    preparing: int = 0
    wanted: bool = True
    wish: int = 0
    done: int = 0
    trouble: str = ""

    @property
    def absence(self) -> str:
        """Why requests that name no version are not answered; empty: they are, or nobody wants it.

        In a server that still starts, it is what has been tried so far.
        """
        if DEFAULT_NAME in self.names or not self.wanted:
            return ""
        coming = self.preparing or max((h.version for h in self.held), default=0)
        if coming:
            return f"version {coming} is being loaded"
        if self.failures:
            last = max(self.failures, key=lambda failure: failure.version)
            return f"version {last.version} failed at {last.phase}: {last.reason}"
        return self.trouble or "the server's policy names no version of it"

    def situation(self) -> Situation:
        """What the policy decides by."""
        return Situation(
            published=self.published,
            labels=self.labels,
            held=frozenset(holding.version for holding in self.held),
            ready=frozenset(holding.version for holding in self.held if holding.ready),
            failed=frozenset(failure.version for failure in self.failures),
            names=self.names,
            previous=self.previous,
        )

    def failed(self, failure: Failure) -> "ModelReleases":
        """With a version that is not held any more, because it could not be loaded."""
        others = tuple(f for f in self.failures if f.version != failure.version)
        held = tuple(h for h in self.held if h.version != failure.version)
        failures = (*others, replace(failure, reason=failure.reason[:MOST_REASON]))
        return replace(self, held=held, failures=failures, preparing=0)


@dataclass(frozen=True, slots=True)
class Releases:
    """What a server holds.

    Attributes:
        models: by name.
        moment: when the names mean what they say, on the monotonic clock, in every worker at once.
        next_key: of the next holding.
        answered: clients' wishes up to this one have been taken up.
    """

    models: dict[str, ModelReleases] = field(default_factory=dict)
    moment: float = 0.0
    next_key: int = 1
    answered: int = 0

    @property
    def missing(self) -> dict[str, str]:
        """The models that are to be served and are not, and why."""
        return {name: why for name, model in self.models.items() if (why := model.absence)}


@dataclass(frozen=True, slots=True)
class Report:
    """What a worker has of the releases.

    Attributes:
        loaded: keys of the holdings that it has loaded.
        failed: phase and reason of those that it could not load.
        seen: the board's sequence whose names hold here.
    """

    loaded: tuple[int, ...] = ()
    failed: dict[int, tuple[str, str]] = field(default_factory=dict)
    seen: int = 0


@dataclass(frozen=True, slots=True)
class Wish:
    """What a client wants of a model.

    Attributes:
        serial: later wishes have higher ones.
        wanted: whether the model is to be served.
    """

    serial: int
    wanted: bool


Wishes = dict[str, Wish]
WISHES: TypeAdapter[Wishes] = TypeAdapter(Wishes)
RELEASES = TypeAdapter(Releases)
REPORT = TypeAdapter(Report)
