"""What `serve --print-config` prints."""

from collections.abc import Mapping

from rich.table import Table

from serving.commands.console import OUT, print_json
from serving.setting import DeclaredSetting
from serving.setting_sources import DEFAULT, Sourced


def print_settings(
    declared: Mapping[str, DeclaredSetting], found: Mapping[str, Sourced], *, as_json: bool
) -> None:
    """Prints each setting's value and where it came from.

    Args:
        declared: the settings.
        found: their values.
        as_json: one line of JSON instead of a table.
    """
    if as_json:
        print_json(
            {
                name: {"value": declared[name].plain(one.value), "source": one.source}
                for name, one in found.items()
            }
        )
        return
    table = Table("setting", "value", "unit", "from", box=None)
    for name, one in found.items():
        setting = declared[name]
        style = "dim" if one.source == DEFAULT else ""
        table.add_row(name, setting.shown(one.value), setting.said.unit, one.source, style=style)
    OUT.print(table, highlight=False, markup=False)
