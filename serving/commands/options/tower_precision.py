"""The precision of a benchmark's tower, as an option."""

from collections.abc import Sequence
from typing import Annotated

import typer

from sharded_infer.specs.precision import Precision


def on_processors(wanted: Precision | Sequence[Precision] | None) -> object:
    """Raise BadParameter for precisions that processors do not support."""
    given = [wanted] if isinstance(wanted, Precision) else wanted or []
    if Precision.TF32 in given:
        raise typer.BadParameter("processors compute a tf32 tower in fp32: measure fp32")
    return wanted


TowerPrecision = Annotated[
    Precision, typer.Option(help="Precision of the tower.", callback=on_processors)
]
