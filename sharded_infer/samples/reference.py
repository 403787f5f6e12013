"""Recording of a trained model's own scores beside samples, for the import check."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sharded_infer.errors import InputError
from sharded_infer.inputs.outcomes import LABEL, REFERENCE
from sharded_infer.specs.model_spec import TowerSpec

_OUTCOMES = (LABEL, REFERENCE)


def record_reference(
    model: Callable[..., Any],
    samples: Any,
    *,
    inputs: Callable[[Any], tuple[Any, ...] | Mapping[str, Any]] | None = None,
    output: str = TowerSpec().outputs[0],
    batch: int = 1024,
) -> Any:
    """Add a trained model's own scores to samples, as columns `reference.<output>`.

    The model is called on `batch` samples at a time, in order, under `torch.inference_mode()`; a
    `nn.Module` is put into evaluation mode. Without `inputs` it is called as `model(**columns)`:
    every column except labels and reference scores becomes a tensor on the model's device, int64
    `[B]` for integers, fp32 `[B]` for others, `[B, N]` for lists of N. With `inputs` it is called
    as `model(*inputs(part))`, or `model(**inputs(part))` for a mapping; `part` has the next
    samples, in the form of `samples`.

    Args:
        model: a `nn.Module` or another callable.
        samples: a pandas DataFrame, a mapping of columns by name, or a list of samples, each a
            mapping by name.
        inputs: makes the model's arguments; needed if lists differ in length, or arguments and
            columns in name.
        output: the name of unnamed scores; a model of several outputs returns a mapping by output.

    Returns:
        Samples of the same kind, with a column of scores for each output: numbers for `[B]` and
            `[B, 1]`, lists for `[B, K]`. Write them to a file for `publish --calibration`.

    Raises:
        InputError: the samples have another form, a column cannot be a tensor, or the model does
            not return scores of each sample; names the column or output.
    """
    count = _count(samples)
    found: dict[str, list[NDArray[np.float32]]] = {}
    with _evaluating(model):
        for start in range(0, count, batch):
            part = _part(samples, start, min(start + batch, count))
            made = _tensors(part, _device(model)) if inputs is None else inputs(part)
            returned = model(**made) if isinstance(made, Mapping) else model(*made)
            scores = returned if isinstance(returned, Mapping) else {output: returned}
            for name, values in scores.items():
                found.setdefault(name, []).append(_scores(name, values, _count(part)))
    columns = {
        f"{REFERENCE}.{name}": np.concatenate(parts).tolist() for name, parts in found.items()
    }
    return _with_columns(samples, columns)


def _is_frame(samples: Any) -> bool:
    # pandas need not be installed.
    return hasattr(samples, "iloc") and hasattr(samples, "assign") and hasattr(samples, "columns")


def _count(samples: Any) -> int:
    if _is_frame(samples):
        count = len(samples)
    elif isinstance(samples, Mapping) and samples:
        lengths = {name: len(column) for name, column in samples.items()}
        count = next(iter(lengths.values()))
        for name, length in lengths.items():
            if length != count:
                raise InputError(f"column {name!r}: {length} values, expected {count}")
    elif isinstance(samples, Sequence) and all(isinstance(one, Mapping) for one in samples):
        count = len(samples)
    else:
        raise InputError(
            "samples: expected a pandas DataFrame, a mapping of columns by name or a list of "
            f"mappings, got a {type(samples).__name__}"
        )
    if not count:
        raise InputError("samples: expected at least one")
    return count


def _part(samples: Any, start: int, stop: int) -> Any:
    if _is_frame(samples):
        return samples.iloc[start:stop]
    if isinstance(samples, Mapping):
        return {name: column[start:stop] for name, column in samples.items()}
    return samples[start:stop]


def _with_columns(samples: Any, columns: dict[str, list[Any]]) -> Any:
    if _is_frame(samples):
        return samples.assign(**columns)
    if isinstance(samples, Mapping):
        return {**samples, **columns}
    rows = ({name: column[row] for name, column in columns.items()} for row in range(len(samples)))
    return [{**sample, **scores} for sample, scores in zip(samples, rows, strict=True)]


def _tensors(part: Any, device: torch.device) -> dict[str, Tensor]:
    if _is_frame(part):
        named: dict[str, Any] = {name: part[name].tolist() for name in part.columns}
    elif isinstance(part, Mapping):
        named = dict(part)
    else:
        named = {name: [sample.get(name) for sample in part] for name in part[0]}
    return {
        name: _tensor(name, column).to(device)
        for name, column in named.items()
        if name.partition(".")[0] not in _OUTCOMES
    }


def _tensor(name: str, column: Any) -> Tensor:
    if isinstance(column, Tensor):
        return column
    try:
        array = np.array([np.asarray(cell) for cell in column])
    except ValueError:
        array = np.array(None)
    if array.dtype.kind not in "iuf" or array.ndim not in (1, 2):
        raise InputError(
            f"column {name!r}: expected numbers, or lists of numbers of one length, got "
            f"{list(column)[:3]!r:.80}; say with `inputs` how the model takes it"
        )
    return torch.from_numpy(array.astype(np.float32 if array.dtype.kind == "f" else np.int64))


def _scores(name: str, values: Any, samples: int) -> NDArray[np.float32]:
    if isinstance(values, Tensor):
        values = values.detach().float().cpu().numpy()
    try:
        scores = np.asarray(values, np.float32)
    except (TypeError, ValueError):
        scores = np.empty(0, np.float32)
    if scores.ndim not in (1, 2) or len(scores) != samples:
        came = f"a {type(values).__name__} {list(np.shape(scores))}"
        raise InputError(
            f"output {name!r}: expected scores [{samples}] or [{samples}, K] of {samples} samples, "
            f"got {came}; a model of several outputs returns a mapping by output"
        )
    return scores[:, 0] if scores.ndim == 2 and scores.shape[1] == 1 else scores


def _device(model: object) -> torch.device:
    if isinstance(model, nn.Module):
        for tensor in (*model.parameters(), *model.buffers()):
            return tensor.device
    return torch.device("cpu")


@contextmanager
def _evaluating(model: object) -> Iterator[None]:
    was_training = isinstance(model, nn.Module) and model.training
    if isinstance(model, nn.Module):
        model.eval()
    try:
        with torch.inference_mode():
            yield
    finally:
        if isinstance(model, nn.Module):
            model.train(was_training)
