"""Shows recorded requests, scores them again, and removes old ones."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from numpy.typing import NDArray

from kernels.wording import counted
from serving.commands.console import JsonOption, print_result
from serving.commands.lazy_group import load_by_name
from serving.commands.options.caller_options import CallerOptions, caller_of
from serving.commands.options.durations import parse_seconds
from serving.commands.options.option_fields import declare_fields
from serving.commands.options.version_options import ModelOption
from serving.commands.repo.arguments import DryRunOption
from serving.remote.replay import ScoreRequest, remote_scorer
from sharded_infer.errors import InputError
from sharded_infer.quality.score_difference import score_gaps
from sharded_infer.samples.record import (
    RecordedRequest,
    listed_files,
    record_files,
    recorded_requests,
)

RecordArgument = Annotated[
    Path, typer.Argument(metavar="RECORD", help="Folder that a server recorded in (--record).")
]
_LONGEST = 1e9  # seconds
Scores = dict[str, NDArray[np.float32]]


@dataclass(slots=True)
class VersionFigures:
    """Recorded requests of one version.

    Attributes:
        empty: samples without ids, by sparse input.
        ids: of all samples, by sparse input.
        scores: least, mean and largest, by output.
    """

    requests: int = 0
    failed: int = 0
    samples: int = 0
    first: float = np.inf
    last: float = -np.inf
    p50_seconds: float = 0.0
    p99_seconds: float = 0.0
    ids: dict[str, int] = field(default_factory=dict)
    empty: dict[str, int] = field(default_factory=dict)
    scores: dict[str, tuple[float, float, float]] = field(default_factory=dict)


def record_show_command(
    record: RecordArgument, model: ModelOption = None, as_json: JsonOption = False
) -> None:
    """Show a recording: requests, samples, ids and scores of each version."""
    figures: dict[int, VersionFigures] = defaultdict(VersionFigures)
    seconds: dict[int, list[float]] = defaultdict(list)
    scores: dict[int, dict[str, list[NDArray[np.float32]]]] = defaultdict(lambda: defaultdict(list))
    for request in recorded_requests(record_files(record, model)):
        found = figures[request.version]
        _add(found, request)
        seconds[request.version].append(
            sum(value for name, value in request.seconds.items() if name != "time")
        )
        for name, values in request.scores.items():
            scores[request.version][name].append(values.ravel())
    for version, found in figures.items():
        p50, p99 = np.percentile(seconds[version], [50, 99])
        found.p50_seconds, found.p99_seconds = float(p50), float(p99)
        for name, parts in scores[version].items():
            values = np.concatenate(parts)
            least, mean, most = values.min(), values.mean(), values.max()
            found.scores[name] = float(least), float(mean), float(most)
    fields = {str(version): asdict(found) for version, found in sorted(figures.items())}
    lines = [line for v, found in sorted(figures.items()) for line in _lines(v, found)]
    print_result(fields, "\n".join(lines), as_json=as_json)


def record_prune_command(
    record: RecordArgument,
    older_than: Annotated[
        str,
        typer.Option(help="Age from which files are removed: 12h, 30d."),
    ],
    model: ModelOption = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Remove files of hours that ended long ago."""
    age = timedelta(seconds=min(parse_seconds(older_than), _LONGEST), hours=1)
    limit = datetime.now(UTC) - age
    old = [file for file in listed_files(record, model) if file.hour < limit]
    size = 0
    for file in old:
        size += file.path.stat().st_size
        if not dry_run:
            file.path.unlink()
            _remove_empty(file.path.parent, record)
    what = "would be removed" if dry_run else "removed"
    fields = {"files": len(old), "bytes": size, "removed": not dry_run}
    print_result(fields, f"{counted(len(old), 'file')}, {size} bytes, {what}", as_json=as_json)


def record_compare_command(
    record: RecordArgument,
    repository: Annotated[
        str | None,
        typer.Option("--repository", "-r", metavar="REPO", help="Score here, without a server."),
    ] = None,
    address: Annotated[
        str | None, typer.Option("--address", "-a", help="Score on a server, HOST:PORT.")
    ] = None,
    model: ModelOption = None,
    version: Annotated[
        str | None,
        typer.Option(help="Version: a number or a label; default: latest, or the server's."),
    ] = None,
    bound: Annotated[
        float, typer.Option(min=0, help="Largest difference of a score that is allowed.")
    ] = 0.0,
    as_json: JsonOption = False,
    **credentials: Any,
) -> None:
    """Score recorded requests again, as they were sent, and compare the scores.

    Shows by recorded version how far the scores differ. The exit code is 1 if any differs by more
    than --bound.
    """
    if (repository is None) == (address is None):
        raise InputError("expected one of --repository and --address")
    found: dict[int, _Differences] = defaultdict(_Differences)

    def compare(score: ScoreRequest) -> None:
        for request in recorded_requests(record_files(record, model)):
            if request.status == "OK":
                found[request.version].add(request, score(request), bound)

    if address is not None:
        with remote_scorer(address, version, caller=caller_of(credentials)) as remote:
            compare(remote)
    else:
        name = record_files(record, model)[0].model
        scorer: Callable[..., Any] = load_by_name("serving.commands.opened_version:local_scorer")
        with scorer(repository, name, version) as local:
            compare(local)
    fields = {str(number): differences.fields() for number, differences in sorted(found.items())}
    lines = [
        f"recorded by version {number}: {counted(own['requests'], 'request')}, "
        f"{counted(own['samples'], 'sample')}; scores differ by at most {own['largest']:.3g}, "
        f"{own['mean']:.3g} in the mean; {own['share_beyond']:.2%} by more than {bound:g}"
        for number, own in fields.items()
    ]
    print_result(fields, "\n".join(lines), as_json=as_json)
    if any(own["share_beyond"] for own in fields.values()):
        raise typer.Exit(1)


declare_fields(record_compare_command, CallerOptions)


@dataclass(slots=True)
class _Differences:
    requests: int = 0
    samples: int = 0
    largest: float = 0.0
    total: float = 0.0
    scores: int = 0
    beyond: int = 0

    def add(self, request: RecordedRequest, scores: Scores, bound: float) -> None:
        self.requests += 1
        self.samples += request.samples
        for name, recorded in request.scores.items():
            if name not in scores or scores[name].shape != recorded.shape:
                came = list(scores[name].shape) if name in scores else "none"
                raise InputError(
                    f"output {name!r}: {list(recorded.shape)} scores are recorded, got {came}"
                )
            gaps = score_gaps(recorded, scores[name])
            self.largest = max(self.largest, float(gaps.max()))
            self.total += float(gaps.sum())
            self.scores += gaps.size
            self.beyond += int((gaps > bound).sum())

    def fields(self) -> dict[str, Any]:
        return {
            "requests": self.requests,
            "samples": self.samples,
            "largest": self.largest,
            "mean": self.total / max(1, self.scores),
            "share_beyond": self.beyond / max(1, self.scores),
        }


def _add(found: VersionFigures, request: RecordedRequest) -> None:
    found.requests += 1
    found.failed += request.status != "OK"
    found.samples += request.samples
    found.first = min(found.first, request.seconds["time"])
    found.last = max(found.last, request.seconds["time"])
    for name, lengths in request.inputs.items():
        if not name.endswith(".lengths"):
            continue
        times = request.samples // max(1, len(lengths))
        owner = name.removesuffix(".lengths")
        ids, empty = int(lengths.sum()) * times, int((lengths == 0).sum()) * times
        found.ids[owner] = found.ids.get(owner, 0) + ids
        found.empty[owner] = found.empty.get(owner, 0) + empty


def _lines(version: int, found: VersionFigures) -> Iterator[str]:
    first, last = (
        datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M:%S")
        for time in (found.first, found.last)
    )
    yield (
        f"version {version}: {counted(found.requests, 'request')}, "
        f"{counted(found.samples, 'sample')}, {found.failed} failed, {first} to {last} UTC"
    )
    yield f"  seconds: p50 {found.p50_seconds:.3g}, p99 {found.p99_seconds:.3g}"
    for name, ids in found.ids.items():
        share = found.empty[name] / max(1, found.samples)
        yield f"  {name}: {ids / max(1, found.samples):.3g} ids a sample, {share:.1%} without"
    for name, (least, mean, most) in found.scores.items():
        yield f"  {name}: {least:.4g} to {most:.4g}, mean {mean:.4g}"


def _remove_empty(folder: Path, top: Path) -> None:
    while folder != top and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent
