"""A setting, declared once for flag, environment variable, file key and reference page.

A settings class is a dataclass with fields of `Annotated[type, Setting(...)]`.
"""

import types
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from enum import Enum, StrEnum
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from serving.config.version_policy import VersionPolicy, parse_policy
from sharded_infer.errors import InputError

PREFIX = "SHARDED_INFER_"
# Limit of C's int, and thus of every library below.
LARGEST = 2**31 - 1
_TRUTH = {
    "true": True, "1": True, "yes": True, "on": True,
    "false": False, "0": False, "no": False, "off": False,
}  # fmt: skip


class Group(StrEnum):
    """Sections of the reference page."""

    MODELS = "Models"
    ADDRESSES = "Addresses"
    RUNNING = "Running"
    LIMITS = "Limits"
    CONNECTIONS = "Connections"
    SECURITY = "Security"
    OBSERVING = "Observing"
    STOPPING = "Stopping"


@dataclass(frozen=True, slots=True)
class Setting:
    """Declaration of a setting, except for name, type and default.

    Attributes:
        group: section of the reference page.
        at_least: None: the negative of `at_most`.
        at_most: None: `LARGEST`.
        metavar: placeholder of its value in the command's help.
        old_name: former name, accepted for one release with a warning.
    """

    group: Group
    help: str
    unit: str = ""
    at_least: float | None = None
    at_most: float | None = None
    short: str | None = None
    metavar: str | None = None
    old_name: str | None = None


@dataclass(frozen=True, slots=True)
class DeclaredSetting:
    """A setting with its declaration.

    Attributes:
        name: of the field, and the key in a file.
        type: of its values, without None.
        optional: it may be None, which means not set.
        default: MISSING: the setting is required.
    """

    name: str
    type: Any
    optional: bool
    default: Any
    said: Setting

    @property
    def flag(self) -> str:
        """Its option on the command line."""
        return flag_of(self.name)

    @property
    def variable(self) -> str:
        """Its environment variable."""
        return variable_of(self.name)

    @property
    def names(self) -> tuple[str, ...]:
        """Its name, then its old one."""
        return (self.name,) if self.said.old_name is None else (self.name, self.said.old_name)

    @property
    def is_list(self) -> bool:
        """True if its value is a list."""
        return get_origin(self.type) is tuple

    @property
    def choices(self) -> tuple[str, ...]:
        """Its allowed values; empty: not restricted to a list."""
        if get_origin(self.type) is Literal:
            return get_args(self.type)
        if isinstance(self.type, type) and issubclass(self.type, Enum):
            return tuple(member.value for member in self.type)
        return ()

    @property
    def expected(self) -> str:
        """Text about its allowed values."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        if self.type is VersionPolicy:
            return "latest, latest:N, labels:NAME,NAME or versions:N,N"
        if self.is_list:
            return "a list of texts"
        if self.type is bool:
            return "true or false"
        if self.type is str:
            return "a text"
        words = "a whole number" if self.type is int else "a number"
        return f"{words} from {self.least:.10g} to {self.most:.10g}"

    @property
    def least(self) -> float:
        """Smallest allowed number."""
        return -LARGEST if self.said.at_least is None else self.said.at_least

    @property
    def most(self) -> float:
        """Largest allowed number."""
        return LARGEST if self.said.at_most is None else self.said.at_most

    def read(self, text: str, source: str) -> Any:
        """Parses a text, such as an environment variable; raises as `check`."""
        value: Any = text
        if self.is_list:
            value = [part.strip() for part in text.split(",") if part.strip()]
        elif self.type is bool:
            value = _TRUTH.get(text.strip().lower(), text)
        elif self.type in (int, float):
            try:
                value = self.type(text)
            except ValueError:
                raise self._refusal(text, source) from None
        return self.check(value, source)

    def check(self, value: Any, source: str) -> Any:
        """Checks and converts a value of a file or the command line.

        Raises:
            InputError: with the key, the source and the expected values.
        """
        found = self._converted(value)
        if found is None or not self._is_in_bounds(found):
            raise self._refusal(value, source)
        return found

    def shown(self, value: Any) -> str:
        """A value as text for people."""
        if value is None:
            return "-"
        if isinstance(value, bool):
            return str(value).lower()
        return (
            ",".join(value) if self.is_list else f"{value:g}" if self.type is float else str(value)
        )

    def plain(self, value: Any) -> object:
        """A value for JSON and TOML."""
        if isinstance(value, VersionPolicy):
            return str(value)
        return list(value) if self.is_list else value

    def _converted(self, value: Any) -> Any:
        kind = self.type
        if self.is_list:
            good = isinstance(value, list) and all(isinstance(part, str) for part in value)
            return tuple(value) if good else None
        if kind is VersionPolicy:
            return _policy(value)
        if self.choices:
            if value not in self.choices:
                return None
            return kind(value) if isinstance(kind, type) else value
        # True is an int to Python.
        if isinstance(value, bool) is not (kind is bool):
            return None
        if kind is float and isinstance(value, int):
            return float(value)
        return value if isinstance(value, kind) else None

    def _is_in_bounds(self, value: Any) -> bool:
        if self.type not in (int, float):
            return True
        # NaN compares false with any bound.
        return bool(self.least <= value <= self.most)

    def _refusal(self, value: object, source: str) -> InputError:
        return InputError(f"{self.name} ({source}): expected {self.expected}, got {value!r}")


def flag_of(name: str) -> str:
    """The option of a setting's name."""
    return "--" + name.replace("_", "-")


def variable_of(name: str) -> str:
    """The environment variable of a setting's name."""
    return PREFIX + name.upper()


def declared_settings(settings_class: type) -> Mapping[str, DeclaredSetting]:
    """The settings of a settings class by name, in its order."""
    hints = get_type_hints(settings_class, include_extras=True)
    found = {}
    for field in fields(settings_class):
        kind, *rest = get_args(hints[field.name]) or (None,)
        said = next((one for one in rest if isinstance(one, Setting)), None)
        if said is None:
            continue
        optional = get_origin(kind) in (Union, types.UnionType)
        if optional:
            kind = next(one for one in get_args(kind) if one is not types.NoneType)
        default = None if optional and field.default is MISSING else field.default
        found[field.name] = DeclaredSetting(field.name, kind, optional, default, said)
    return found


def _policy(value: object) -> VersionPolicy | None:
    try:
        return parse_policy(value) if isinstance(value, str) else None
    except InputError:
        return None
