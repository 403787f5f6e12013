"""Files' formats by their first bytes, for messages about unreadable files."""

import struct
from pathlib import Path

SAFETENSORS = "a safetensors file"
NUMPY = "a .npy file"
TEXT = "a text file"
ZIP = "a zip archive"
# A local file header of ZIP: signature, 22 unneeded bytes, lengths of the name and the extra field.
# Source: section 4.3.7 of PKWARE's APPNOTE.TXT.
LOCAL_HEADER = struct.Struct("<4s22xHH")
# Of torch.save before release 1.6. Source: MAGIC_NUMBER in torch/serialization.py, pickled.
_OLD_TORCH = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19."
_KINDS = (
    (
        _OLD_TORCH,
        "a file in the format of torch before 1.6, which cannot be mapped: load it and save it "
        "again with torch.save",
    ),
    (b"PK\3\4", ZIP),
    (b"\x93NUMPY", NUMPY),
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file"),
    (b"PAR1", "a Parquet file"),
    (b"\x1f\x8b", "a gzip file: decompress it"),
    (b"\x28\xb5\x2f\xfd", "a zstd file: decompress it"),
    *(
        (bytes([0x80, protocol]), "a plain pickle: save a state dict with torch.save")
        for protocol in range(2, 6)
    ),
    (
        b"version https://git-lfs",
        "a pointer of Git LFS, not the file itself: fetch it with git lfs pull",
    ),
)
_HEAD_BYTES = 512


def file_kind(path: Path) -> str | None:
    """The format that a file's first bytes tell, with advice; None if they tell none."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return None
    if not head:
        return "the file is empty"
    for first, kind in _KINDS:
        if head.startswith(first):
            return kind
    # The length of its header, then the header's JSON.
    if head[8:9] == b"{" and head[6:8] == b"\0\0":
        return SAFETENSORS
    if head[257:262] == b"ustar":
        return "a tar archive: unpack it"
    return TEXT if all(byte >= 32 or byte in b"\t\n\r" for byte in head) else None


def why_unreadable(path: Path, own: str, error: object) -> str:
    """The reason that a file of the kind `own` cannot be read: another kind, or the error."""
    kind = file_kind(path)
    return str(error) if kind is None or kind == own else kind
