"""What users of a release rely on by name, walked from the objects themselves.

    python -m tests.compatibility.surface           # writes the listing of the newest release

A listing maps a section to names, and each name to what it means: of a field its number and type.
Labels, choices and parameters are names of their own. Adding names is free. A name that went, or
means something else, breaks a user.
"""

import importlib
import inspect
import json
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

import click
from google.protobuf.descriptor import FieldDescriptor, FileDescriptor
from typer.main import get_command

import sharded_infer
import sharded_infer.client
from serving.cli import app
from serving.config.server_config import ServerConfig
from serving.config.setting import declared_settings, flag_of
from serving.metrics.families.all_families import MODEL_LABELS, VERSION_FAMILIES, VERSION_LABELS
from serving.metrics.families.model_families import MODEL_FAMILIES
from serving.metrics.families.server_families import PAGE_FAMILIES, SERVER_FAMILIES
from serving.metrics.families.shadow_families import SHADOW_FAMILIES
from serving.metrics.families.shard_host_families import HOST_FAMILIES, HOST_LABELS
from sharded_infer.v1 import predictor_pb2, shard_host_pb2
from tests.compatibility.corpus import FOLDER, releases, stored

Listing = dict[str, dict[str, str]]
LISTING = FOLDER / "surface.json"
_OPENAPI = Path(importlib.import_module("serving.http_api").__path__[0]) / "openapi.json"
_BLOCKS = (
    ((), (*SERVER_FAMILIES, *PAGE_FAMILIES)),
    (MODEL_LABELS, MODEL_FAMILIES),
    (VERSION_LABELS, (*VERSION_FAMILIES, *SHADOW_FAMILIES)),
    (HOST_LABELS, HOST_FAMILIES),
)


def surface() -> Listing:
    """The listing of this code. The section `deprecated` has old names that still work."""
    files: tuple[FileDescriptor, ...] = (predictor_pb2.DESCRIPTOR, shard_host_pb2.DESCRIPTOR)
    settings = declared_settings(ServerConfig).values()
    old = {one.said.old_name: one for one in settings if one.said.old_name is not None}
    return {
        "protos": {name: says for file in files for name, says in _protos(file)},
        "routes": dict(_routes()),
        "metrics": dict(_metrics()),
        "settings": {
            name: ""
            for one in settings
            for name in (one.name, *(f"{one.name}={choice}" for choice in one.choices))
        },
        "options": dict.fromkeys(_options(get_command(app), ""), ""),
        "python": {
            name: says
            for module in (sharded_infer, sharded_infer.client)
            for name, says in _python(module)
        },
        "deprecated": {name: one.name for name, one in old.items()}
        | {f"serve {flag_of(name)}": f"serve {one.flag}" for name, one in old.items()},
    }


def _protos(file: FileDescriptor) -> Iterator[tuple[str, str]]:
    kinds = {v: k for k, v in vars(FieldDescriptor).items() if k.startswith("TYPE_")}
    messages = list(file.message_types_by_name.values())
    enumerations = list(file.enum_types_by_name.values())
    while messages:
        message = messages.pop()
        messages += message.nested_types
        enumerations += message.enum_types
        for field in message.fields:
            named = field.message_type or field.enum_type
            kind = named.full_name if named else kinds[field.type].removeprefix("TYPE_").lower()
            many = "repeated " if field.is_repeated else ""
            yield field.full_name, f"{field.number}: {many}{kind}"
    for enumeration in enumerations:
        for value in enumeration.values:
            yield f"{enumeration.full_name}.{value.name}", f"{value.number}"
    for service in file.services_by_name.values():
        for method in service.methods:
            streams = method.client_streaming, method.server_streaming
            asked, answered = (
                ("stream " if is_stream else "") + named.full_name
                for is_stream, named in zip(
                    streams, (method.input_type, method.output_type), strict=True
                )
            )
            yield method.full_name, f"{asked} -> {answered}"


def _routes() -> Iterator[tuple[str, str]]:
    for path, methods in json.loads(_OPENAPI.read_text())["paths"].items():
        for method, operation in methods.items():
            # Beside methods, a path has its parameters.
            if "responses" in operation:
                yield f"{method.upper()} {path}", ""


def _metrics() -> Iterator[tuple[str, str]]:
    """Families with their kinds, and each label of a family."""
    for labels, families in _BLOCKS:
        for family in families:
            yield family.full_name, str(family.kind)
            own = family.label.split(", ") if family.label else ()
            yield from ((f"{family.full_name}{{{label}}}", "") for label in (*labels, *own))


def _options(command: Any, called: str) -> Iterator[str]:
    """Commands, their options and the options' choices; and those of the commands below."""
    for parameter in command.params:
        if parameter.param_type_name == "option":
            choices = getattr(parameter.type_descriptor, "choices", None) or ()
            for name in (*parameter.opts, *parameter.secondary_opts):
                yield f"{called} {name}".strip()
                for choice in choices:
                    yield f"{called} {name}={getattr(choice, 'value', choice)}".strip()
    for name in getattr(command, "commands", ()):
        below = f"{called} {name}".strip()
        yield below
        # A group's own entries are names alone until a command is asked for.
        yield from _options(command.get_command(click.Context(command), name), below)


def _python(module: ModuleType) -> Iterator[tuple[str, str]]:
    for name in module.__all__:
        value = getattr(module, name)
        full = f"{module.__name__}.{name}"
        yield full, "class" if isinstance(value, type) else "function"
        if not isinstance(value, type):
            yield from _parameters(full, value)
        elif issubclass(value, Enum):
            yield from ((f"{full}.{member}", "") for member in value.__members__)
        else:
            if inspect.isfunction(value.__init__):
                yield from _parameters(full, value)
            for member, found in vars(value).items():
                if not member.startswith("_"):
                    yield f"{full}.{member}", ""
                    if inspect.isfunction(found):
                        yield from _parameters(f"{full}.{member}", found)


def _parameters(full: str, called: Any) -> Iterator[tuple[str, str]]:
    names = [name for name in inspect.signature(called).parameters if name != "self"]
    yield from ((f"{full}({name})", "") for name in names)


def read_listing(release: str) -> Listing:
    """The listing of a release: of the newest beside its archive, of the others in theirs."""
    is_newest = release == releases()[-1]
    path = LISTING if is_newest else stored(release).folder / "surface.json"
    listing: Listing = json.loads(path.read_text())
    return listing


def names_that_went(before: Listing, now: Listing) -> set[str]:
    """Names that are no more, or mean something else now; without what belonged to such a name."""
    went = {
        name
        for section, names in before.items()
        if section != "deprecated"
        for name, says in names.items()
        if now.get(section, {}).get(name) != says
    }
    return {name for name in went if not any(owner in went for owner in _owners(name))}


def numbers_used_again(before: Listing, now: Listing) -> list[str]:
    """Fields of messages that have another field's former number."""
    owners = {_place(name, says): name for name, says in before["protos"].items() if ": " in says}
    return sorted(
        f"{name} has the number of {former}"
        for name, says in now["protos"].items()
        if ": " in says and (former := owners.get(_place(name, says), name)) != name
    )


def _place(name: str, says: str) -> tuple[str, str]:
    return name.rpartition(".")[0], says.partition(":")[0]


def _owners(name: str) -> Iterator[str]:
    """What a parameter, a label, a choice, a member or an option belongs to."""
    for mark in "({=":
        if mark in name:
            yield name.partition(mark)[0]
    for mark in ". ":
        head = name.partition("(")[0]
        while mark in head:
            head = head.rpartition(mark)[0]
            yield head


if __name__ == "__main__":
    # As that of the newest release.
    LISTING.write_text(json.dumps(surface(), indent=1, sort_keys=True) + "\n")
