"""Arguments of the `repo` commands: repository, model, versions by number or label."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated

import typer

from serving.commands.options.version_options import named_version
from sharded_infer.repositories.repository import Repository

LocationArgument = Annotated[
    str, typer.Argument(metavar="REPO", help="Folder, or URL such as s3://bucket/prefix.")
]
ModelArgument = Annotated[str, typer.Argument(metavar="MODEL", help="Model.")]
AnyModelArgument = Annotated[
    str | None, typer.Argument(metavar="MODEL", help="Model; default: all.")
]
ModelVersionArgument = Annotated[
    str,
    typer.Argument(
        metavar="MODEL[@VERSION]", help="Model, and a version or label of it; default: latest."
    ),
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be done, and do nothing.")
]


def named_model_version(repository: Repository, text: str) -> tuple[str, int]:
    """Resolve a `MODEL[@VERSION]`; see `named_version`."""
    model, _, name = text.partition("@")
    return model, named_version(repository, model, name or "latest")


def weights_text(weights: Mapping[str, int]) -> str:
    """Weights as an option sets them: `canary=5 stable=95`."""
    return " ".join(f"{label}={weight}" for label, weight in weights.items()) or "none"


def age_seconds(created_at: str, now: datetime) -> float | None:
    """Seconds since a version was published; None if its time is unknown."""
    try:
        created = datetime.fromisoformat(created_at)
    except ValueError:
        return None
    return (now - (created if created.tzinfo else created.replace(tzinfo=UTC))).total_seconds()


def age_text(seconds: float | None, decimals: int = 0) -> str:
    """An age in its largest unit. A negative age is reported as a clock error."""
    if seconds is None:
        return "unknown"
    if seconds < 0:
        return "in the future"
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.{decimals}f} {unit}"
    return f"{seconds:.0f} s"
