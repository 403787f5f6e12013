"""Sources of settings: flags before environment variables before a file before defaults."""

from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

from kernels.wording import did_you_mean
from serving.config.setting import PREFIX, DeclaredSetting, flag_of, variable_of
from sharded_infer.errors import InputError
from sharded_infer.files.toml_file import read_toml

CONFIG_VARIABLE = f"{PREFIX}CONFIG"
TOKENS_VARIABLE = f"{PREFIX}TOKENS"
# The project's other variables, which are not settings of a server.
OTHER_VARIABLES = (
    CONFIG_VARIABLE,
    TOKENS_VARIABLE,
    *(
        PREFIX + name
        for name in (
            # Options of an installation.
            "BENCH",
            "CACHE",
            "CACHE_SIZE",
            "DATA",
            "MAX_INSTRUCTION_SET",
            "NGHTTP2",
            "OPENSSL",
            "SOAK",
            # For commands that call a server.
            "TOKEN",
        )
    ),
)
DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Sourced:
    """A setting's value, and its source: a flag, a variable, a file, or "default".

    `name` is the setting's name in the source, which may be its old one.
    """

    value: Any
    source: str
    name: str


Declared = Mapping[str, DeclaredSetting]


def read_settings(
    declared: Declared,
    *,
    flags: Mapping[str, object],
    environment: Mapping[str, str],
    file: Path | None,
) -> dict[str, Sourced]:
    """Value of each setting, from the first source that has it.

    Args:
        flags: of the command line, by name or old name.
        environment: empty variables count as not set.
        file: TOML.

    Raises:
        InputError: an invalid value, an unknown key, an unreadable file, a setting under its name
            and its old one, or a missing required setting.
    """
    keys = {} if file is None else _read_file(file, declared)
    found = {}
    for name, setting in declared.items():
        variables = {
            one: text for one in setting.names if (text := environment.get(variable_of(one)))
        }
        if said := _name_in(flags, setting, flag_of):
            flag = flag_of(said)
            found[name] = Sourced(setting.check(flags[said], flag), flag, said)
        elif said := _name_in(variables, setting, variable_of):
            variable = variable_of(said)
            found[name] = Sourced(setting.read(variables[said], variable), variable, said)
        elif said := _name_in(keys, setting, lambda key: f"{file}: {key}"):
            found[name] = Sourced(setting.check(keys[said], str(file)), str(file), said)
        elif setting.default is MISSING:
            raise InputError(
                f"{name}: expected {setting.flag}, {setting.variable} or a key of the "
                "configuration file, got none"
            )
        else:
            found[name] = Sourced(setting.default, DEFAULT, name)
    return found


def old_names(found: Mapping[str, Sourced]) -> list[str]:
    """Warnings about settings under their old names."""
    return [
        f"{one.source}: {one.name} is now called {name}; the next release knows the new name only"
        for name, one in found.items()
        if one.name != name
    ]


def unknown_variables(declared: Declared, environment: Mapping[str, str]) -> list[str]:
    """Warnings about unknown variables with the project's prefix."""
    names = (name for setting in declared.values() for name in setting.names)
    known = [*OTHER_VARIABLES, *map(variable_of, names)]
    unknown = (name for name in environment if name.startswith(PREFIX) and name not in known)
    return [f"{name}: no such variable{did_you_mean(name, known)}" for name in sorted(unknown)]


def _read_file(file: Path, declared: Declared) -> dict[str, Any]:
    keys = read_toml(file, str(file), InputError)
    known = {name for setting in declared.values() for name in setting.names}
    for name in keys:
        if name not in known:
            raise InputError(f"{file}: unknown key {name!r}{did_you_mean(name, declared)}")
    return keys


def _name_in(
    values: Mapping[str, object], setting: DeclaredSetting, place: Callable[[str], str]
) -> str | None:
    """Name of a setting in a source, or None."""
    said = [name for name in setting.names if name in values]
    if len(said) > 1:
        new, old = map(place, said)
        raise InputError(f"{new} and {old}, its old name: expected one of them, got both")
    return said[0] if said else None
