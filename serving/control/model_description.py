"""Descriptions of a server and its models for clients, as plain values."""

from collections.abc import Mapping
from dataclasses import dataclass

from serving.config.version_policy import NAME_PARAMETER
from serving.metrics.totals import Totals
from serving.protocol.wire_strings import BYTES, RAW_IDS, STRING_HASH, STRING_HASH_SEED
from serving.protocol.wire_tensors import KEEP, MAX_LENGTH, SEQUENCE
from sharded_infer.engines.model import Model
from sharded_infer.specs.model_spec import ModelSpec

# Parameter of the precision of a tower's products.
PRODUCTS = "products"
# Platform and backend of every model here.
PLATFORM = "sharded_infer"


@dataclass(frozen=True, slots=True)
class ServerDescription:
    """A server's name, version and protocol extensions."""

    name: str
    version: str
    extensions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TensorDescription:
    """An input or output of a model.

    Attributes:
        datatype: the protocol's name, such as FP32.
        shape: without the batch; -1 where the size varies between requests.
        optional: requests may leave it out.
    """

    name: str
    datatype: str
    shape: tuple[int, ...]
    optional: bool = False

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """The shape with -1 for the batch in front."""
        return (-1, *self.shape)


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """A version's inputs and outputs, and the versions of its model's labels.

    Attributes:
        versions: the model's versions that requests may name, ascending.
        max_batch: the most samples in a request.
        parameters: version numbers by `version.<name>`, for `default` and each label; the precision
            of the tower's products; and parameters of inputs with raw ids, and of sequences.
    """

    name: str
    versions: tuple[int, ...]
    max_batch: int
    inputs: tuple[TensorDescription, ...]
    outputs: tuple[TensorDescription, ...]
    parameters: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class VersionTotals:
    """Totals of a version over all processes since the server started."""

    name: str
    version: int
    totals: Totals


def describe_model(
    model: Model, versions: tuple[int, ...], names: Mapping[str, int], max_batch: int
) -> ModelDescription:
    """Describes a version; arguments as the fields of `ModelDescription`.

    Companion inputs such as `item.lengths` and the all-at-once form are accepted but not listed,
    because a load generator sends every listed input. Integer inputs also accept INT32, and BYTES
    where the parameters say it.
    """
    spec = model.spec
    dense = [TensorDescription(name, "FP32", (width,)) for name, width in spec.dense.inputs.items()]
    sparse = [
        TensorDescription(name, "INT64", (-1,), name not in spec.required_inputs)
        for name in spec.sparse_inputs
    ]
    numbers = [
        TensorDescription(name, "FP32", (-1,) if width == 1 else (-1, width), optional=True)
        for name, width in spec.sequence_numbers.items()
    ]
    return ModelDescription(
        name=model.name,
        versions=versions,
        max_batch=max_batch,
        inputs=(*dense, *sparse, *numbers),
        outputs=tuple(
            TensorDescription(output.name, "FP32", () if output.width is None else (output.width,))
            for output in model.artifact.manifest.tower.outputs
        ),
        parameters={
            **{NAME_PARAMETER + name: str(version) for name, version in names.items()},
            **({} if model.products is None else {PRODUCTS: model.products.text}),
            **_raw_inputs(spec),
            **_sequences(spec),
        },
    )


def _raw_inputs(spec: ModelSpec) -> dict[str, str]:
    found: dict[str, str] = {}
    strings = spec.string_inputs
    for name in sorted(spec.raw_inputs):
        found[RAW_IDS + name] = f"INT64, {BYTES}" if name in strings else "INT64"
        if name in strings:
            hashed, seed = strings[name]
            found |= {STRING_HASH + name: hashed.value, STRING_HASH_SEED + name: str(seed)}
    return found


def _sequences(spec: ModelSpec) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, sequence in spec.sequences.items():
        found |= {SEQUENCE + member: name for member in sequence.members}
        found |= {MAX_LENGTH + name: str(sequence.max_length), KEEP + name: sequence.keep}
    return found
