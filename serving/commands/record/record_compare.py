"""Scores recorded requests again, and compares the scores."""

from collections import defaultdict
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from kernels.wording import counted
from serving.commands.console import JsonOption, print_result
from serving.commands.lazy_group import load_by_name
from serving.commands.options.caller_options import CallerOptions, caller_of
from serving.commands.options.option_fields import declare_fields
from serving.commands.options.version_options import AddressOption, ModelOption
from serving.commands.record.arguments import RecordArgument
from serving.remote.replay import ScoreRequest, remote_scorer
from sharded_infer.errors import InputError, RequestError
from sharded_infer.quality.score_difference import score_gaps
from sharded_infer.samples.record import (
    RecordedRequest,
    local_record,
    record_files,
    recorded_requests,
)


def record_compare_command(
    record: RecordArgument,
    repository: Annotated[
        str | None,
        typer.Option("--repository", "-r", metavar="REPO", help="Score here, without a server."),
    ] = None,
    address: AddressOption = None,
    model: ModelOption = None,
    version: Annotated[
        str | None,
        typer.Option(help="Version: a number or a label; default: latest, or the server's."),
    ] = None,
    bound: Annotated[
        float,
        typer.Option(
            min=0,
            help="Largest difference of a score that is allowed. Scores of a request that was run "
            "in a batch with others may differ in their last bits.",
        ),
    ] = 1e-6,
    as_json: JsonOption = False,
    **credentials: Any,
) -> None:
    """Score recorded requests again, as they were sent, and compare the scores.

    Shows by recorded version how far the scores differ. The exit code is 1 if any differs by more
    than --bound, or a request is refused.
    """
    if (repository is None) == (address is None):
        raise InputError("expected one of --repository and --address")
    caller = caller_of(credentials)
    by_version: dict[int, _Differences] = defaultdict(_Differences)
    with ExitStack() as stack:
        files = record_files(stack.enter_context(local_record(record, model)), model)
        if address is not None:
            scorer = remote_scorer(address, version, caller=caller)
        else:
            local_scorer = load_by_name("serving.commands.opened_version:local_scorer")
            scorer = local_scorer(repository, files[0].model, version)
        score: ScoreRequest = stack.enter_context(scorer)
        for request in recorded_requests(files):
            if request.is_scored:
                by_version[request.version].add(request, score, bound)
    if not by_version:
        raise InputError(f"{record}: no answered requests")
    fields = {
        str(number): differences.fields() for number, differences in sorted(by_version.items())
    }
    lines = [
        f"recorded by version {number}: {counted(own['requests'], 'request')}, "
        f"{counted(own['samples'], 'sample')}; scores differ by at most {own['largest']:.3g}, "
        f"{own['mean']:.3g} in the mean; {own['share_beyond']:.2%} by more than {bound:g}"
        + (f"; {own['refused']} refused: {own['refusal']}" if own["refused"] else "")
        for number, own in fields.items()
    ]
    print_result(fields, "\n".join(lines), as_json=as_json)
    if any(own["share_beyond"] or own["refused"] for own in fields.values()):
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
    refused: int = 0
    refusal: str = ""  # the first one's reason

    def add(self, request: RecordedRequest, score: ScoreRequest, bound: float) -> None:
        self.requests += 1
        self.samples += request.samples
        try:
            scores = score(request)
        except RequestError as error:
            self.refused += 1
            self.refusal = self.refusal or str(error)
            return
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
            "refused": self.refused,
            "refusal": self.refusal,
        }
