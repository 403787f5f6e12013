"""Looks at the machine and the installation."""

from typing import Annotated

import typer
from rich.table import Table

from serving.address import LAST_PORT
from serving.commands.console import OUT, print_json
from serving.commands.json_option import JsonOption
from serving.doctor import Verdict, examine


def doctor_command(
    port: Annotated[
        list[int] | None, typer.Option(help="Port to check; may be repeated.", min=0, max=LAST_PORT)
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Check the installation, the machine and the ports.

    Versions, FBGEMM's pairing with torch, compiled libraries, CPU features, cards, import names.
    """
    findings = examine(port or (8001, 8002))
    problems = [finding for finding in findings if finding.verdict is Verdict.PROBLEM]
    if as_json:
        fields = [{"check": f.check, "verdict": f.verdict, "detail": f.detail} for f in findings]
        print_json(fields)
    else:
        table = Table("check", "verdict", "detail", box=None)
        for finding in findings:
            table.add_row(finding.check, finding.verdict, finding.detail)
        OUT.print(table)
    if problems:
        raise typer.Exit(1)
