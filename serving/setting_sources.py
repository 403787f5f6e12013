"""Where settings come from: flags before environment variables before a file before defaults."""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import Any

from kernels.wording import did_you_mean
from serving.setting import PREFIX, DeclaredSetting
from sharded_infer.errors import InputError
from sharded_infer.toml_file import read_toml

CONFIG_VARIABLE = f"{PREFIX}CONFIG"
TOKENS_VARIABLE = f"{PREFIX}TOKENS"
# Variables of the project that are no settings of a server.
OTHER_VARIABLES = (
    CONFIG_VARIABLE,
    TOKENS_VARIABLE,
    *(
        PREFIX + name
        for name in (
            "CACHE",
            "CACHE_SIZE",
            "DATA",
            "MAX_INSTRUCTION_SET",
            "SOAK",
            "TEST_IMAGE",
            # A command's, for the server that it calls.
            "TOKEN",
        )
    ),
)
DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Sourced:
    """A setting's value and where it came from.

    Attributes:
        value: checked.
        source: a flag, a variable, a file, or "default".
    """

    value: Any
    source: str


Declared = Mapping[str, DeclaredSetting]


def read_settings(
    declared: Declared,
    *,
    flags: Mapping[str, object],
    environment: Mapping[str, str],
    file: Path | None,
) -> dict[str, Sourced]:
    """The value of each setting, from whoever has the first word.

    Args:
        declared: the settings.
        flags: those given on the command line, by name.
        environment: the variables; an empty one is as none.
        file: a TOML file; None: there is none.

    Raises:
        InputError: a value that a setting cannot have, an unknown key, a file that cannot be read,
            or a setting that must be said and is not.
    """
    keys = {} if file is None else _read_file(file, declared)
    found = {}
    for name, setting in declared.items():
        if name in flags:
            value = setting.check(flags[name], setting.flag)
            found[name] = Sourced(value, setting.flag)
        elif environment.get(setting.variable):
            value = setting.read(environment[setting.variable], setting.variable)
            found[name] = Sourced(value, setting.variable)
        elif name in keys:
            found[name] = Sourced(setting.check(keys[name], str(file)), str(file))
        elif setting.default is MISSING:
            raise InputError(
                f"{name}: expected {setting.flag}, {setting.variable} or a key of the "
                "configuration file, got none"
            )
        else:
            found[name] = Sourced(setting.default, DEFAULT)
    return found


def unknown_variables(declared: Declared, environment: Mapping[str, str]) -> list[str]:
    """Words about each variable with the project's prefix that means nothing."""
    known = [*OTHER_VARIABLES, *(setting.variable for setting in declared.values())]
    unknown = (name for name in environment if name.startswith(PREFIX) and name not in known)
    return [f"{name}: no such variable{did_you_mean(name, known)}" for name in sorted(unknown)]


def _read_file(file: Path, declared: Declared) -> dict[str, Any]:
    keys = read_toml(file, str(file), InputError)
    for name in keys:
        if name not in declared:
            raise InputError(f"{file}: unknown key {name!r}{did_you_mean(name, declared)}")
    return keys
