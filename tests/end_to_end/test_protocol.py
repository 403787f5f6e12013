"""What a server says of itself, and typed inputs, on the wire as gRPC has it."""

from typing import Any

from tritonclient.grpc import model_config_pb2, service_pb2

from tests.conformance.test_inference import FORMS
from tests.support.servers import DATATYPES, DENSE_WIDTH, MODEL, Ranker, check_bits, scores_of

FEATURES = ("user", "item", "history", "category", "brand")


def test_metadata_and_configuration_describe_each_tensor_with_and_without_the_batch(
    stub: Any,
) -> None:
    metadata = stub.ModelMetadata(service_pb2.ModelMetadataRequest(name=MODEL), timeout=10)
    assert metadata.name == MODEL and list(metadata.versions) == ["1"] and metadata.platform
    inputs = {i.name: (i.datatype, list(i.shape)) for i in metadata.inputs}
    assert inputs == {
        "dense": ("FP32", [-1, DENSE_WIDTH]),
        **dict.fromkeys(FEATURES, ("INT64", [-1, -1])),
    }
    sparse = [i.name for i in metadata.inputs if i.datatype == "INT64"]
    assert sparse == list(FEATURES), "sparse.lengths is in this order"
    outputs = {o.name: (o.datatype, list(o.shape)) for o in metadata.outputs}
    assert outputs == {"score": ("FP32", [-1]), "labels": ("FP32", [-1, 3])}
    asked = service_pb2.ModelConfigRequest(name=MODEL, version="1")
    config = stub.ModelConfig(asked, timeout=10).config
    assert config.name == MODEL and config.max_batch_size == 65536
    types = {"INT64": model_config_pb2.TYPE_INT64, "FP32": model_config_pb2.TYPE_FP32}
    for described, configured in (
        (metadata.inputs, config.input),
        (metadata.outputs, config.output),
    ):
        assert [(t.name, types[t.datatype], list(t.shape)) for t in described] == [
            (t.name, t.data_type, [-1, *t.dims]) for t in configured
        ]
    assert not config.HasField("sequence_batching")
    assert not config.HasField("ensemble_scheduling")
    assert not config.model_transaction_policy.decoupled


def test_typed_contents_score_as_the_opened_version_to_the_bit(stub: Any, ranker: Ranker) -> None:
    fields = {"int64": "int64_contents", "int32": "int_contents", "float32": "fp32_contents"}
    for inputs in FORMS.values():
        request = service_pb2.ModelInferRequest(model_name=MODEL)
        for name, array in inputs.items():
            tensor = request.inputs.add(name=name, datatype=DATATYPES[array.dtype.name])
            tensor.shape.extend(array.shape)
            getattr(tensor.contents, fields[array.dtype.name]).extend(array.ravel().tolist())
        check_bits(scores_of(stub.ModelInfer(request, timeout=10)), ranker.predict(inputs))
