"""Options that several benchmarks have."""

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
WorkloadOption = Annotated[
    str,
    typer.Option(
        help="Model and requests: ranking (26 tables), ragged (100 inputs) or dlrm-v2 (MLPerf's, "
        "with tables cut to 2 million rows)."
    ),
]
PairsOption = Annotated[int, typer.Option(help="Samples of a request.", min=1)]
AllPairsOption = Annotated[
    list[int] | None, typer.Option(help="Samples of a request; may be repeated.", min=1)
]
ServeOption = Annotated[
    list[str] | None,
    typer.Option(help="Option for the server that is started, such as --serve-option=--workers=2."),
]
RoundsOption = Annotated[int, typer.Option(min=1, help="Rounds of turns; the medians are shown.")]
SecondsOption = Annotated[float, typer.Option(min=0.1, help="Seconds of each measurement.")]
