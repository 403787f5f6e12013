"""Publishing by one call, of a trained module or of a spec with its weights and tower."""

from collections.abc import Mapping, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, overload

from torch import nn

from sharded_infer.importing.modules.from_module import from_module
from sharded_infer.publishing import publication
from sharded_infer.publishing.publication import PublishedVersion
from sharded_infer.repositories.repository import Repository
from sharded_infer.specs.model_spec import ModelSpec


@overload
def publish(
    model: nn.Module,
    example_inputs: object,
    repository: Repository | Path | str,
    *,
    name: str = ...,
    method: str = ...,
    columns: Sequence[str] | Mapping[str, Sequence[str]] | None = ...,
    user: Sequence[str] = ...,
    **options: Any,
) -> PublishedVersion: ...
@overload
def publish(
    spec: ModelSpec,
    weights: object,
    tower: nn.Module,
    repository: Repository | Path | str,
    **options: Any,
) -> PublishedVersion: ...
@wraps(publication.publish)
def publish(*arguments: Any, **options: Any) -> PublishedVersion:
    """Quantize, plan and publish one version of a model.

    `publish(module, example_inputs, repository, name=...)` publishes a trained `nn.Module` with
    embeddings inside, as `from_module` cuts it, and compares the version's scores with the
    module's. `publish(spec, weights, tower, repository)` publishes a described model. Both take
    the options of `sharded_infer.publishing.publication.publish`, and raise its errors; the first
    takes those of `from_module` too.
    """
    is_module = "model" in options or (arguments and isinstance(arguments[0], nn.Module))
    return (_publish_module if is_module else publication.publish)(*arguments, **options)


def _publish_module(
    model: nn.Module,
    example_inputs: object,
    repository: Repository | Path | str,
    *,
    name: str = "model",
    method: str = "forward",
    columns: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
    user: Sequence[str] = (),
    **options: Any,
) -> PublishedVersion:
    imported = from_module(
        model, example_inputs, name=name, method=method, columns=columns, user=user
    )
    if options.get("calibration") is not None:
        options.setdefault("samples", imported.samples)
    return publication.publish(
        imported.spec,
        imported.weights,
        imported.tower,
        repository,
        **options,
    )
