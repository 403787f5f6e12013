"""The schemas of the OpenAPI description: what JSON goes in and out."""

from typing import Any


def _object(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    if required:
        schema["required"] = list(required)
    return schema


def _list(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


def _reference(name: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{name}"}


_TEXT: dict[str, Any] = {"type": "string"}
_FLAG: dict[str, Any] = {"type": "boolean"}
_COUNT: dict[str, Any] = {"type": "integer", "minimum": 0}
_SIZE: dict[str, Any] = {"type": "integer", "minimum": 0, "maximum": 2**63 - 1}
_WHOLE: dict[str, Any] = {"type": "integer"}
_DATATYPES = ["INT64", "INT32", "FP32"]
_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "additionalProperties": {"type": ["string", "number", "boolean"]},
}
_DATA: dict[str, Any] = {
    "type": "array",
    "description": "Numbers, row by row in lists or all in one.",
    "items": {"anyOf": [{"type": "number"}, {"type": "array"}]},
}
_OUTPUT_DATA: dict[str, Any] = {
    "type": "array",
    "description": "Row by row, all in one list; null where a score is no finite number.",
    "items": {"type": ["number", "null"]},
}
_DURATION = _object(("count", "ns"), count=_COUNT, ns=_COUNT)
_BATCH_PHASES = ("compute_input", "compute_infer", "compute_output")
_PHASES = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")
_LABELLED = _list(
    _object(
        ("name", "datatype", "shape"),
        name=_TEXT,
        datatype={"enum": _DATATYPES},
        shape=_list({"type": "integer", "minimum": -1}),
    )
)
_TRACE_VALUE: dict[str, Any] = {
    "anyOf": [_TEXT, {"type": "null"}, _list(_TEXT)],
}

SCHEMAS: dict[str, Any] = {
    "Error": _object(("error",), error=_TEXT),
    "ServerMetadata": _object(
        ("name", "version", "extensions"), name=_TEXT, version=_TEXT, extensions=_list(_TEXT)
    ),
    "ModelMetadata": _object(
        ("name", "versions", "platform", "inputs", "outputs"),
        name=_TEXT,
        versions=_list(_TEXT),
        platform=_TEXT,
        inputs=_LABELLED,
        outputs=_LABELLED,
    ),
    "ModelConfig": _object(
        ("name", "platform", "backend", "max_batch_size", "input", "output"),
        name=_TEXT,
        platform=_TEXT,
        backend=_TEXT,
        max_batch_size=_COUNT,
        input=_list({"type": "object"}),
        output=_list({"type": "object"}),
    ),
    "Statistics": _object(
        ("model_stats",),
        model_stats=_list(
            _object(
                ("name", "version", "inference_count", "execution_count", "inference_stats"),
                name=_TEXT,
                version=_TEXT,
                last_inference=_COUNT,
                inference_count=_COUNT,
                execution_count=_COUNT,
                inference_stats=_object(_PHASES, **dict.fromkeys(_PHASES, _DURATION)),
                batch_stats=_list(
                    _object(
                        ("batch_size", *_BATCH_PHASES),
                        batch_size=_COUNT,
                        **dict.fromkeys(_BATCH_PHASES, _DURATION),
                    )
                ),
            )
        ),
    ),
    "InferRequest": _object(
        ("inputs",),
        id=_TEXT,
        parameters=_PARAMETERS,
        inputs=_list(
            _object(
                ("name", "datatype", "shape"),
                name=_TEXT,
                datatype={"enum": _DATATYPES},
                shape=_list(_SIZE),
                parameters=_PARAMETERS,
                data=_DATA,
            )
        ),
        outputs=_list(_object(("name",), name=_TEXT, parameters=_PARAMETERS)),
    ),
    "InferResponse": _object(
        ("model_name", "model_version", "outputs"),
        model_name=_TEXT,
        model_version=_TEXT,
        id=_TEXT,
        parameters=_PARAMETERS,
        outputs=_list(
            _object(
                ("name", "datatype", "shape"),
                name=_TEXT,
                datatype={"enum": _DATATYPES},
                shape=_list(_SIZE),
                parameters=_PARAMETERS,
                data=_OUTPUT_DATA,
            )
        ),
    ),
    "TraceSettings": {"type": "object", "additionalProperties": _TRACE_VALUE},
    "LogSettings": {
        "type": "object",
        "properties": {
            "log_info": {"type": ["boolean", "null"]},
            "log_warnings": {"type": ["boolean", "null"]},
            "log_errors": {"type": ["boolean", "null"]},
            "log_verbose_level": {"type": ["integer", "null"], "minimum": 0},
            "log_file": {"type": ["string", "null"]},
            "log_format": {"type": ["string", "null"]},
        },
    },
    "RepositoryIndexRequest": _object(ready=_FLAG),
    "RepositoryIndex": _list(
        _object(
            ("name", "version", "state", "reason"),
            name=_TEXT,
            version=_TEXT,
            state=_TEXT,
            reason=_TEXT,
        )
    ),
    "RepositoryRequest": _object(parameters=_PARAMETERS),
    "SystemRegion": _object(("key", "byte_size"), key=_TEXT, offset=_SIZE, byte_size=_SIZE),
    "SystemRegions": _list(
        _object(
            ("name", "key", "offset", "byte_size"),
            name=_TEXT,
            key=_TEXT,
            offset=_COUNT,
            byte_size=_COUNT,
        )
    ),
    "CudaRegion": _object(
        ("raw_handle", "device_id", "byte_size"),
        raw_handle=_object(("b64",), b64=_TEXT),
        device_id=_SIZE,
        byte_size=_SIZE,
    ),
    "CudaRegions": _list(_object(name=_TEXT, device_id=_WHOLE, byte_size=_COUNT)),
}
