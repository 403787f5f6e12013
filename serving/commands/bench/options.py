"""Options that several benchmarks have."""

from typing import Annotated

import typer

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
