"""Publishes a trained `nn.Module`: `publish` with `--module`."""

import importlib
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from serving.commands.console import ERRORS, print_result, progress_bars
from serving.commands.lazy_group import load_by_name
from serving.commands.models.quantization import with_budget
from sharded_infer.errors import InputError
from sharded_infer.repositories.signatures.keys import read_signing_keys
from sharded_infer.specs.order_rows import OrderRows

if TYPE_CHECKING:
    from sharded_infer.publishing.publication import PublishedVersion

Options = Mapping[str, Any]
_JAGGED_MODULE = "torchrec.sparse.jagged_tensor"
_STYLES = re.compile("\x1b\\[[0-9;]*m")  # of terminals
_STATES = ("state_dict", "model_state_dict", "model")


@dataclass(frozen=True, slots=True)
class ModuleOptions:
    """Options of a module that is published whole, one a field."""

    module: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="Publish a trained nn.Module with embeddings inside, such as ranker.model:make: a "
            "function that returns it, or its class. Takes --example instead of --spec. --weights "
            "is its state dict, and may be left out where the function loads it.",
        ),
    ] = None
    example: Annotated[
        Path | None,
        typer.Option(
            help="Arguments of a call of --module on real samples: a tensor, tuple or dict of "
            "tensors that torch.save wrote. It is read without unpickling."
        ),
    ] = None
    name: Annotated[
        str | None, typer.Option(help="The model's name, of --module; default: the class's.")
    ] = None
    method: Annotated[str, typer.Option(help="The method of --module that scores.")] = "forward"
    columns: Annotated[
        str | None,
        typer.Option(
            help="Names of the columns of the [B, F] input of --module, with commas between them; "
            "neighbours of one name are one input."
        ),
    ] = None
    user: Annotated[
        list[str] | None,
        typer.Option(
            help="An input of --module that a request sends once for all samples; may be repeated."
        ),
    ] = None
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="With --module: report its tables, inputs and doubts, and its model.toml, and "
            "publish nothing.",
        ),
    ] = False


def publish_module(
    chosen: ModuleOptions,
    options: Options,
    print_version: Callable[..., None],
    *,
    as_json: bool,
) -> None:
    """Import a module, report what was found, and publish it unless this is a dry run.

    Raises InputError for a module or an example that cannot be loaded, and as `from_module` and
    `publish`.
    """
    if options["spec"] is not None:
        raise InputError("--spec and --module exclude each other: the module says what it is")
    if options["samples"] is not None or options["order_rows"] != OrderRows.AS_TRAINED:
        raise InputError("--samples and --order-rows: expected none beside --module")
    if options["golden"] is not None or options["golden_rows"] is not None:
        raise InputError("--golden: expected --calibration beside --module")
    if chosen.example is None:
        raise InputError("--module: expected --example, arguments of a call of it")
    keys = read_signing_keys(options["sign_key"] or ())
    torch: Any = importlib.import_module("torch")
    torch.set_num_threads(1)
    example = None
    try:
        example = _loaded(chosen.example, torch)
    except InputError as error:
        if _JAGGED_MODULE not in str(error):
            raise
    # It imports TorchRec, whose class the example may hold.
    module = _made(chosen.module or "", torch)
    if example is None:
        example = _loaded(chosen.example, torch)
    if options["weights"] is not None:
        _load_state(module, options["weights"], torch)
    columns = None if chosen.columns is None else chosen.columns.split(",")
    imported = load_by_name("sharded_infer.importing.modules.from_module:from_module")(
        module,
        example,
        name=chosen.name or type(module).__name__,
        method=chosen.method,
        columns=columns,
        user=chosen.user or (),
    )
    spec = with_budget(imported.spec, options["memory_budget"], options["error_budget"])
    if chosen.dry_run:
        toml = spec.to_toml()
        fields = {**asdict(imported.report), "model_toml": toml}
        print_result(fields, f"{imported.report}\n\n{toml}", as_json=as_json)
        return
    ERRORS.print(str(imported.report), soft_wrap=True, markup=False, highlight=False)
    own = options["calibration"]
    with progress_bars() as progress:
        published: PublishedVersion = load_by_name("sharded_infer.publishing.publication:publish")(
            spec,
            imported.weights,
            imported.tower,
            options["repository"],
            topologies=options["topology"] or ("cpu:1",),
            samples=None if own is None else imported.samples,
            calibration=own,
            note=options["note"],
            run_id=options["run_id"],
            source_revision=options["source_revision"],
            sign_keys=keys,
            progress=progress,
        )
    print_version(spec.name, published, {}, as_json=as_json)


def _made(name: str, torch: Any) -> Any:
    """The module that a function, or a class without arguments, makes."""
    path, _, attribute = name.partition(":")
    if not path or not attribute:
        raise InputError(
            f"--module: expected MODULE:FUNCTION, such as ranker.model:make, got {name!r}"
        )
    # As `python -m` does: the module is the user's own, next to where the command runs.
    sys.path.insert(0, str(Path.cwd()))
    try:
        function = getattr(importlib.import_module(path), attribute)
        made = function if isinstance(function, torch.nn.Module) else function()
    # The function is the user's code, and may raise anything.
    except Exception as error:
        raise InputError(f"--module {name}: {type(error).__name__}: {error}") from error
    if not isinstance(made, torch.nn.Module):
        raise InputError(f"--module {name}: expected an nn.Module, got a {type(made).__name__}")
    return made


def _loaded(path: Path, torch: Any) -> Any:
    _check_file(path)
    jagged: Any = getattr(sys.modules.get(_JAGGED_MODULE), "KeyedJaggedTensor", None)
    try:
        with torch.serialization.safe_globals([] if jagged is None else [jagged]):
            return torch.load(path, weights_only=True, map_location="cpu")
    # Unpickling may raise anything.
    except Exception as error:
        lines = _STYLES.sub("", str(error)).splitlines()
        refused = (line.strip() for line in lines if "GLOBAL" in line)
        reason = next(refused, lines[0] if lines else type(error).__name__)
        raise InputError(
            f"{path}: expected tensors that torch.save wrote: {reason:.300}"
        ) from error


def _check_file(path: Path) -> None:
    # Neither a pipe, which would be waited for, nor a device.
    if not path.is_file():
        raise InputError(f"{path}: no such file")


def _load_state(module: Any, path: Path, torch: Any) -> None:
    if path.suffix == ".safetensors":
        _check_file(path)
        state = importlib.import_module("safetensors.torch").load_file(path)
    else:
        state = _loaded(path, torch)
        for key in _STATES:
            if isinstance(state, Mapping) and isinstance(state.get(key), Mapping):
                state = state[key]
    prefix = re.compile(r"^((module|_orig_mod)\.)+")
    if isinstance(state, Mapping) and all(prefix.match(str(key)) for key in state):
        state = {prefix.sub("", str(key)): value for key, value in state.items()}
    try:
        module.load_state_dict(state)
    except (RuntimeError, TypeError, AttributeError) as error:
        reason = load_by_name("sharded_infer.torch_message:torch_message")(error)
        raise InputError(f"{path}: not the weights of {type(module).__name__}: {reason}") from error
