"""Moves labels forward and back."""

import shlex
from typing import Annotated

import typer

from kernels.wording import did_you_mean
from serving.commands.console import JsonOption, print_result, say
from serving.commands.options.version_options import named_version
from serving.commands.repo.arguments import (
    DryRunOption,
    LocationArgument,
    ModelArgument,
    weights_text,
)
from sharded_infer.errors import InputError, NotFoundError
from sharded_infer.repositories.labels import Labels
from sharded_infer.repositories.repository import Repository
from sharded_infer.repositories.rollback import roll_back, rollback_target


def repo_label_command(
    location: LocationArgument,
    model: ModelArgument,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="LABEL [VERSION] | LABEL=WEIGHT",
            help="Label, such as stable, and the version, other label or latest to point it at; "
            "or the weights of labels, such as stable=95 canary=5.",
        ),
    ] = None,
    remove: Annotated[
        bool, typer.Option("--remove", help="Remove the label, and its weight.")
    ] = False,
    clear_weights: Annotated[
        bool,
        typer.Option(
            "--clear-weights",
            help="Take the weights of all labels away, and forget why promotions ended.",
        ),
    ] = False,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Point a label at a version, remove it, or set weights of labels.

    Labels with weights share the requests that name no version, on servers that follow labels:
    of stable=95 canary=5, canary gets 5 of 100. Labels that are not named have no weight then.
    Servers follow at their next poll. A promotion of the labels ends (repo promote).
    """
    repository = Repository(location)
    words = words or []
    before = repository.label_history(model)
    if clear_weights or any("=" in word for word in words):
        if remove or (clear_weights and words):
            raise InputError("expected weights such as stable=95 canary=5, or --clear-weights")
        weights = {} if clear_weights else _read_weights(words)
        repository.versions(model)
        after = before.weighted(weights)
        if not dry_run:
            after = repository.set_weights(model, weights)
        _print_weights(model, before, after, dry_run=dry_run, as_json=as_json)
        return
    if len(words) != (1 if remove else 2):
        raise InputError("expected a label and a version, a label and --remove, or LABEL=WEIGHT")
    label = words[0]
    if remove:
        repository.versions(model)
        after = before.without(label)
        if not dry_run:
            after = repository.remove_label(model, label)
    else:
        number = named_version(repository, model, words[1])
        after = before.moved(label, number)
        if not dry_run:
            after = repository.set_label(model, label, number)
    _print(model, label, before, after, dry_run=dry_run, as_json=as_json)


def _read_weights(words: list[str]) -> dict[str, int]:
    weights: dict[str, int] = {}
    for word in words:
        label, _, weight = word.partition("=")
        if not (label and weight.isascii() and weight.isdigit()):
            raise InputError(f"expected LABEL=WEIGHT, such as canary=5, got {word!r}")
        if label in weights:
            raise InputError(f"label {label!r} has two weights")
        weights[label] = int(weight)
    return weights


def repo_rollback_command(
    location: LocationArgument,
    model: ModelArgument,
    label: Annotated[str, typer.Option(help="Label to move back.")] = "stable",
    to: Annotated[
        int | None, typer.Option(help="Version; default: where it pointed before.", min=1)
    ] = None,
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
) -> None:
    """Move a label back to the version that it pointed at before, or to the next lower one.

    A second rollback goes further back. Servers that follow the label move at their next poll;
    others do not. A server that follows latest goes back when an older version is published again
    (repo copy).
    """
    repository = Repository(location)
    before = repository.label_history(model)
    if label not in before.versions:
        raise NotFoundError(_without_label(repository, model, label, before))
    if dry_run:
        target = rollback_target(repository, model, before, label, to)
        after = before.moved_back(label, target)
    else:
        after = roll_back(repository, model, label, to)
    _print(model, label, before, after, dry_run=dry_run, as_json=as_json)
    if not as_json:
        move = "would move" if dry_run else "move"
        say(
            f"servers that follow it (serve --follow labels:{label}) {move} at their next look; "
            "others stay as they are"
        )


def _without_label(repository: Repository, model: str, label: str, labels: Labels) -> str:
    """The error for a missing label, with the way to roll back servers that follow none."""
    published = repository.versions(model)
    known = ", ".join(sorted(labels.versions)) or "none"
    missing = f"{repository.location}: model {model!r} has no label {label!r}; there are {known}"
    missing += did_you_mean(label, labels.versions)
    if len(published) == 1:
        return f"{missing}, and version {published[0]} is the only one"
    place = shlex.quote(repository.location)
    again = f"sharded-infer repo copy {place} {model}@{published[-2]} {place}"
    return (
        f"{missing}. Servers that follow latest go back when an older version is published again, "
        f"such as the one before: {again}"
    )


def _print_weights(
    model: str, before: Labels, after: Labels, *, dry_run: bool, as_json: bool
) -> None:
    fields = {
        "model": model,
        "before": dict(before.weights),
        "after": dict(after.weights),
        "dry_run": dry_run,
    }
    would = "would be " if dry_run else ""
    now, was = weights_text(after.weights), weights_text(before.weights)
    print_result(fields, f"{model}: weights {would}{now}, {was} before", as_json=as_json)


def _print(
    model: str, label: str, before: Labels, after: Labels, *, dry_run: bool, as_json: bool
) -> None:
    old, new = before.versions.get(label), after.versions.get(label)
    fields = {
        "model": model,
        "label": label,
        "before": old,
        "after": new,
        "dry_run": dry_run,
        "labels": dict(after.versions),
    }
    would = "would be " if dry_run else ""
    where = "removed" if new is None else f"version {new}"
    was = "new" if old is None else f"version {old} before"
    print_result(fields, f"{model}: {label} {would}{where}, {was}", as_json=as_json)
