from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class PrepareResponse(_message.Message):
    __slots__ = ("model", "version", "known_positions", "computed_positions")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    KNOWN_POSITIONS_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_POSITIONS_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: int
    known_positions: int
    computed_positions: int
    def __init__(self, model: _Optional[str] = ..., version: _Optional[int] = ..., known_positions: _Optional[int] = ..., computed_positions: _Optional[int] = ...) -> None: ...

class PredictRequest(_message.Message):
    __slots__ = ("model", "version", "request_id", "priority", "outputs", "user", "candidates", "report_unknown_ids", "text_key", "number_key")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    REPORT_UNKNOWN_IDS_FIELD_NUMBER: _ClassVar[int]
    TEXT_KEY_FIELD_NUMBER: _ClassVar[int]
    NUMBER_KEY_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    request_id: str
    priority: int
    outputs: _containers.RepeatedScalarFieldContainer[str]
    user: Inputs
    candidates: Inputs
    report_unknown_ids: bool
    text_key: str
    number_key: int
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ..., request_id: _Optional[str] = ..., priority: _Optional[int] = ..., outputs: _Optional[_Iterable[str]] = ..., user: _Optional[_Union[Inputs, _Mapping]] = ..., candidates: _Optional[_Union[Inputs, _Mapping]] = ..., report_unknown_ids: bool = ..., text_key: _Optional[str] = ..., number_key: _Optional[int] = ...) -> None: ...

class Inputs(_message.Message):
    __slots__ = ("sparse", "dense")
    SPARSE_FIELD_NUMBER: _ClassVar[int]
    DENSE_FIELD_NUMBER: _ClassVar[int]
    sparse: _containers.RepeatedCompositeFieldContainer[SparseFeature]
    dense: _containers.RepeatedCompositeFieldContainer[DenseInput]
    def __init__(self, sparse: _Optional[_Iterable[_Union[SparseFeature, _Mapping]]] = ..., dense: _Optional[_Iterable[_Union[DenseInput, _Mapping]]] = ...) -> None: ...

class SparseFeature(_message.Message):
    __slots__ = ("name", "ids", "long_ids", "lengths", "weights", "ids_per_bag", "strings", "string_lengths")
    NAME_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    LONG_IDS_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    IDS_PER_BAG_FIELD_NUMBER: _ClassVar[int]
    STRINGS_FIELD_NUMBER: _ClassVar[int]
    STRING_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    name: str
    ids: _containers.RepeatedScalarFieldContainer[int]
    long_ids: _containers.RepeatedScalarFieldContainer[int]
    lengths: _containers.RepeatedScalarFieldContainer[int]
    weights: _containers.RepeatedScalarFieldContainer[float]
    ids_per_bag: int
    strings: bytes
    string_lengths: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., ids: _Optional[_Iterable[int]] = ..., long_ids: _Optional[_Iterable[int]] = ..., lengths: _Optional[_Iterable[int]] = ..., weights: _Optional[_Iterable[float]] = ..., ids_per_bag: _Optional[int] = ..., strings: _Optional[bytes] = ..., string_lengths: _Optional[_Iterable[int]] = ...) -> None: ...

class DenseInput(_message.Message):
    __slots__ = ("name", "values", "lengths")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    name: str
    values: _containers.RepeatedScalarFieldContainer[float]
    lengths: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, name: _Optional[str] = ..., values: _Optional[_Iterable[float]] = ..., lengths: _Optional[_Iterable[int]] = ...) -> None: ...

class PredictResponse(_message.Message):
    __slots__ = ("model", "version", "request_id", "outputs", "timing", "default_tables", "unknown_ids", "label")
    class UnknownIdsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    TIMING_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_TABLES_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_IDS_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: int
    request_id: str
    outputs: _containers.RepeatedCompositeFieldContainer[Output]
    timing: Timing
    default_tables: _containers.RepeatedScalarFieldContainer[str]
    unknown_ids: _containers.ScalarMap[str, int]
    label: str
    def __init__(self, model: _Optional[str] = ..., version: _Optional[int] = ..., request_id: _Optional[str] = ..., outputs: _Optional[_Iterable[_Union[Output, _Mapping]]] = ..., timing: _Optional[_Union[Timing, _Mapping]] = ..., default_tables: _Optional[_Iterable[str]] = ..., unknown_ids: _Optional[_Mapping[str, int]] = ..., label: _Optional[str] = ...) -> None: ...

class Output(_message.Message):
    __slots__ = ("name", "values", "width")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    name: str
    values: _containers.RepeatedScalarFieldContainer[float]
    width: int
    def __init__(self, name: _Optional[str] = ..., values: _Optional[_Iterable[float]] = ..., width: _Optional[int] = ...) -> None: ...

class Timing(_message.Message):
    __slots__ = ("decode_seconds", "queue_seconds", "lookup_seconds", "tower_seconds")
    DECODE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    QUEUE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    LOOKUP_SECONDS_FIELD_NUMBER: _ClassVar[int]
    TOWER_SECONDS_FIELD_NUMBER: _ClassVar[int]
    decode_seconds: float
    queue_seconds: float
    lookup_seconds: float
    tower_seconds: float
    def __init__(self, decode_seconds: _Optional[float] = ..., queue_seconds: _Optional[float] = ..., lookup_seconds: _Optional[float] = ..., tower_seconds: _Optional[float] = ...) -> None: ...
