"""Messages in the layout of HPS's `KafkaMessageSink::post`, as kcat writes them."""

import struct
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from sharded_infer.errors import WeightsError
from sharded_infer.importing.changes.hps_messages import open_hps_messages

Keys = Literal["int64", "uint32"]


def message(keys: list[int], rows: NDArray[np.float32], kind: Keys = "int64") -> bytes:
    """HPS's message: the prefix, the bytes of a row, then keys and rows in turn."""
    code = "<q" if kind == "int64" else "<I"
    content = b"HCTR" + struct.pack("<I", rows.shape[1] * 4)
    for key, row in zip(keys, rows, strict=True):
        content += struct.pack(code, key) + row.astype("<f4").tobytes()
    return content


def by_kcat(*messages: bytes | None) -> bytes:
    """Output of `kcat -f '%R%s'`."""
    return b"".join(
        struct.pack(">i", -1) if content is None else struct.pack(">i", len(content)) + content
        for content in messages
    )


def of(number: float, count: int, dim: int = 3) -> NDArray[np.float32]:
    return np.full((count, dim), number, np.float32)


@pytest.mark.parametrize("kind", ["int64", "uint32"])
def test_the_last_row_of_each_key_wins(kind: Keys, tmp_path: Path) -> None:
    most = 2**63 - 1 if kind == "int64" else 2**32 - 1
    # Its first bytes are those of a message.
    prefix = int.from_bytes(b"HCTR", "little")
    beacon, tombstone = b"HCTR" + struct.pack("<I", 8), None
    (tmp_path / "item.hps").write_bytes(
        by_kcat(
            beacon,
            message([1, most, prefix], of(1, 3), kind),
            tombstone,
            message([2, 1], of(2, 2), kind),
            message([5, 5], np.array([[3, 3, 3], [4, 4, 4]], np.float32), kind),
        )
    )
    changed = open_hps_messages(tmp_path / "item.hps", "item", keys=kind)["item"]
    assert changed.values is not None and changed.ids.dtype == np.int64
    found = dict(zip(changed.ids.tolist(), changed.values.tolist(), strict=True))
    assert found == {most: [1] * 3, prefix: [1] * 3, 2: [2] * 3, 1: [2] * 3, 5: [4] * 3}


@pytest.mark.parametrize("content", [b"", by_kcat(b"HCTR\x08\0\0\0", None)])
def test_a_file_without_keys_changes_nothing(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "item.hps").write_bytes(content)
    assert open_hps_messages(tmp_path / "item.hps", "item") == {}


WHOLE = by_kcat(message([1, 2], of(1, 2)), message([3], of(2, 1)))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (WHOLE[:-1], "message at byte 52: expected 28 bytes, got 27"),
        (WHOLE[:54], r"message at byte 52: expected the length .*, got b'\\x00\\x00'"),
        (WHOLE[4:], r"message at byte 0: expected the length .*'HCTR'; write .* kcat -f '%R%s'"),
        (struct.pack(">i", -2), "at byte 0: expected the length of a message of HPS, -1 to"),
        (by_kcat(b"HCT"), "at byte 0: expected b'HCTR' and the bytes of a row, got b'HCT'"),
        (by_kcat(b"HPSX" + bytes(24)), "expected b'HCTR' and .*, got b'HPSX"),
        (by_kcat(b"HCTR" + bytes(24)), "keys of 8 bytes with rows of 0, fp32, got 20 bytes"),
        (by_kcat(b"HCTR\x06\0\0\0" + bytes(14)), "with rows of 6, fp32, got 14 bytes"),
        (by_kcat(b"HCTR\x08\0\0\0" + bytes(17)), "with rows of 8, fp32, got 17 bytes"),
        (by_kcat(b"HCTR\xff\xff\xff\xff" + bytes(16)), "with rows of 4294967295, fp32"),
        (
            by_kcat(message([1], of(1, 1)), message([2], of(1, 1, 5))),
            "at byte 32: expected rows of 3 numbers, got 5",
        ),
    ],
)
def test_what_is_no_file_of_messages_is_refused(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "item.hps"
    path.write_bytes(content)
    with pytest.raises(WeightsError, match=f"{path}: .*{words}"):
        open_hps_messages(path, "item")
