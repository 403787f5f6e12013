"""Messages of a server's processes: the watcher's `DesiredState` and workers' `WorkerReport`s."""

from dataclasses import field, replace

from pydantic import TypeAdapter
from pydantic.dataclasses import dataclass

from serving.config.version_policy import DEFAULT_NAME
from serving.versions.decision import KnownVersions

# A longer reason is truncated, as it is for people.
MOST_REASON = 2000


@dataclass(frozen=True, slots=True)
class AssignedVersion:
    """A version that every worker should load.

    Attributes:
        key: of this attempt to load it, unique in a server.
        path: local folder of its verified files.
        created: time of publication, seconds since 1970.
        digest: SHA-256 of its manifest.
        ready: every worker has it, so requests may use it.
    """

    key: int
    version: int
    path: str
    created: float
    digest: str = ""
    ready: bool = False


@dataclass(frozen=True, slots=True)
class Failure:
    """A version that failed to load; a change of its files' `fingerprint` causes another try."""

    version: int
    phase: str
    reason: str
    fingerprint: str


@dataclass(frozen=True, slots=True)
class ModelState:
    """A model's versions in a server.

    Attributes:
        published: the repository's, ascending.
        labels, weights: the repository's.
        failures: versions that are not tried again.
        names: versions by name; the empty name is the default.
        shares: weights of the names that share the requests without a version.
        previous: former version of each name.
        preparing: the version being fetched and verified; 0: none.
        wanted: it should be served; clients may change this.
        load_request: serial of the last applied one; 0: none.
        done: serial of the last one whose versions have loaded or failed.
        trouble: error of the last read or fetch.
    """

    model: str
    published: tuple[int, ...] = ()
    labels: dict[str, int] = field(default_factory=dict)
    weights: dict[str, int] = field(default_factory=dict)
    assigned: tuple[AssignedVersion, ...] = ()
    failures: tuple[Failure, ...] = ()
    names: dict[str, int] = field(default_factory=dict)
    shares: dict[str, int] = field(default_factory=dict)
    previous: dict[str, int] = field(default_factory=dict)
    preparing: int = 0
    wanted: bool = True
    load_request: int = 0
    done: int = 0
    trouble: str = ""

    @property
    def absence(self) -> str:
        """Why requests without a version fail; empty: they do not, or the model is unwanted.

        During a server's start, the attempts so far.
        """
        if DEFAULT_NAME in self.names or not self.wanted:
            return ""
        coming = self.preparing or max((h.version for h in self.assigned), default=0)
        if coming:
            return f"version {coming} is being loaded"
        if self.failures:
            last = max(self.failures, key=lambda failure: failure.version)
            return f"version {last.version} failed at {last.phase}: {last.reason}"
        return self.trouble or "the server's policy names no version of it"

    @property
    def version_shares(self) -> dict[int, float]:
        """Each version's share of the requests without a version; in all 1 or 0."""
        weights = self.shares or {DEFAULT_NAME: 1}
        total, shares = sum(weights.values()), dict[int, float]()
        for name, weight in weights.items():
            if name in self.names:
                version = self.names[name]
                shares[version] = shares.get(version, 0.0) + weight / total
        return shares

    def known_versions(self) -> KnownVersions:
        """Input of the policy."""
        return KnownVersions(
            published=self.published,
            labels=self.labels,
            weights=self.weights,
            assigned=frozenset(assigned_version.version for assigned_version in self.assigned),
            ready=frozenset(
                assigned_version.version
                for assigned_version in self.assigned
                if assigned_version.ready
            ),
            failed=frozenset(failure.version for failure in self.failures),
            names=self.names,
            previous=self.previous,
        )

    def failed(self, failure: Failure) -> "ModelState":
        """The state without a version that could not be loaded."""
        others = tuple(f for f in self.failures if f.version != failure.version)
        assigned = tuple(h for h in self.assigned if h.version != failure.version)
        failures = (*others, replace(failure, reason=failure.reason[:MOST_REASON]))
        return replace(self, assigned=assigned, failures=failures, preparing=0)


@dataclass(frozen=True, slots=True)
class DesiredState:
    """Models and versions that a server should load.

    Attributes:
        moment: when the names take effect in every worker, on the monotonic clock.
        next_key: key of the next assigned version.
        answered: serial up to which load requests have been applied.
    """

    models: dict[str, ModelState] = field(default_factory=dict)
    moment: float = 0.0
    next_key: int = 1
    answered: int = 0

    @property
    def missing(self) -> dict[str, str]:
        """Wanted models that are not served, and why."""
        return {name: why for name, model in self.models.items() if (why := model.absence)}


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """A worker's report of its versions.

    Attributes:
        loaded: keys of loaded versions.
        failed: phase and reason by key.
        opening: key of the version that is being opened and that no worker serves yet; 0: none.
        seen: sequence of the shared state whose names are in effect.
    """

    loaded: tuple[int, ...] = ()
    failed: dict[int, tuple[str, str]] = field(default_factory=dict)
    opening: int = 0
    seen: int = 0


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """A client's request to load (`wanted`) or unload a model; serials ascend."""

    serial: int
    wanted: bool


LatestRequests = dict[str, LoadRequest]
LOAD_REQUESTS: TypeAdapter[LatestRequests] = TypeAdapter(LatestRequests)
RELEASES = TypeAdapter(DesiredState)
REPORT = TypeAdapter(WorkerReport)
