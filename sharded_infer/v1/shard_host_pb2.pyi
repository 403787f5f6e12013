from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DescribeRequest(_message.Message):
    __slots__ = ("model", "served", "front")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    SERVED_FIELD_NUMBER: _ClassVar[int]
    FRONT_FIELD_NUMBER: _ClassVar[int]
    model: str
    served: _containers.RepeatedCompositeFieldContainer[ServedVersion]
    front: int
    def __init__(self, model: _Optional[str] = ..., served: _Optional[_Iterable[_Union[ServedVersion, _Mapping]]] = ..., front: _Optional[int] = ...) -> None: ...

class ServedVersion(_message.Message):
    __slots__ = ("model", "version", "manifest")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: int
    manifest: int
    def __init__(self, model: _Optional[str] = ..., version: _Optional[int] = ..., manifest: _Optional[int] = ...) -> None: ...

class DescribeResponse(_message.Message):
    __slots__ = ("versions",)
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    versions: _containers.RepeatedCompositeFieldContainer[HeldVersion]
    def __init__(self, versions: _Optional[_Iterable[_Union[HeldVersion, _Mapping]]] = ...) -> None: ...

class HeldVersion(_message.Message):
    __slots__ = ("model", "version", "manifest", "topology", "host", "share")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    TOPOLOGY_FIELD_NUMBER: _ClassVar[int]
    HOST_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: int
    manifest: int
    topology: str
    host: int
    share: bytes
    def __init__(self, model: _Optional[str] = ..., version: _Optional[int] = ..., manifest: _Optional[int] = ..., topology: _Optional[str] = ..., host: _Optional[int] = ..., share: _Optional[bytes] = ...) -> None: ...

class LookupRequest(_message.Message):
    __slots__ = ("model", "version", "manifest", "groups", "share", "rows")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    GROUPS_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: int
    manifest: int
    groups: _containers.RepeatedCompositeFieldContainer[LookupGroup]
    share: int
    rows: bool
    def __init__(self, model: _Optional[str] = ..., version: _Optional[int] = ..., manifest: _Optional[int] = ..., groups: _Optional[_Iterable[_Union[LookupGroup, _Mapping]]] = ..., share: _Optional[int] = ..., rows: bool = ...) -> None: ...

class LookupGroup(_message.Message):
    __slots__ = ("pieces", "lengths", "length_bytes", "ids", "id_bytes", "weights", "sum_bytes", "raw")
    PIECES_FIELD_NUMBER: _ClassVar[int]
    LENGTHS_FIELD_NUMBER: _ClassVar[int]
    LENGTH_BYTES_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    ID_BYTES_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_FIELD_NUMBER: _ClassVar[int]
    SUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    RAW_FIELD_NUMBER: _ClassVar[int]
    pieces: _containers.RepeatedScalarFieldContainer[int]
    lengths: bytes
    length_bytes: int
    ids: bytes
    id_bytes: int
    weights: _containers.RepeatedScalarFieldContainer[float]
    sum_bytes: int
    raw: bool
    def __init__(self, pieces: _Optional[_Iterable[int]] = ..., lengths: _Optional[bytes] = ..., length_bytes: _Optional[int] = ..., ids: _Optional[bytes] = ..., id_bytes: _Optional[int] = ..., weights: _Optional[_Iterable[float]] = ..., sum_bytes: _Optional[int] = ..., raw: bool = ...) -> None: ...

class LookupResponse(_message.Message):
    __slots__ = ("sums", "filler", "row_counts", "rows", "unknown", "refused")
    SUMS_FIELD_NUMBER: _ClassVar[int]
    FILLER_FIELD_NUMBER: _ClassVar[int]
    ROW_COUNTS_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    sums: _containers.RepeatedScalarFieldContainer[bytes]
    filler: _containers.RepeatedScalarFieldContainer[int]
    row_counts: _containers.RepeatedScalarFieldContainer[int]
    rows: bytes
    unknown: _containers.RepeatedScalarFieldContainer[int]
    refused: UnknownId
    def __init__(self, sums: _Optional[_Iterable[bytes]] = ..., filler: _Optional[_Iterable[int]] = ..., row_counts: _Optional[_Iterable[int]] = ..., rows: _Optional[bytes] = ..., unknown: _Optional[_Iterable[int]] = ..., refused: _Optional[_Union[UnknownId, _Mapping]] = ...) -> None: ...

class UnknownId(_message.Message):
    __slots__ = ("group", "entry", "bag", "raw_id")
    GROUP_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    BAG_FIELD_NUMBER: _ClassVar[int]
    RAW_ID_FIELD_NUMBER: _ClassVar[int]
    group: int
    entry: int
    bag: int
    raw_id: int
    def __init__(self, group: _Optional[int] = ..., entry: _Optional[int] = ..., bag: _Optional[int] = ..., raw_id: _Optional[int] = ...) -> None: ...
