import errno
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sharded_infer.address_space import address_space_left, is_short_of_memory, memory_short

ROOM = 256 * 2**20
# Its limit lies a little above what it has taken by then, and the file does not fit below.
LIMITED = f"""
import resource, sys
from pathlib import Path
import sharded_infer.artifacts.table_file, sharded_infer.artifacts.table_memory
from sharded_infer.address_space import address_space_left
from sharded_infer.errors import CapacityError

pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + {ROOM}
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
assert 0 < address_space_left() <= {ROOM}
try:
    {{call}}
except CapacityError as error:
    print(error)
"""


@pytest.fixture
def large(tmp_path: Path) -> Path:
    path = tmp_path / "table.safetensors"
    head = b'{"t":{"dtype":"U8","shape":[1024,1048576],"data_offsets":[0,1073741824]}}'
    with path.open("wb") as file:
        file.write(len(head).to_bytes(8, "little") + head)
        file.truncate(8 + len(head) + 2**30)
    return path


@pytest.mark.parametrize(
    ("call", "what"),
    [
        ("sharded_infer.artifacts.table_file.map_table_file(Path(sys.argv[1]))", "mapping it"),
        (
            "sharded_infer.artifacts.table_memory.copy_to_huge_pages(Path(sys.argv[1]), print)",
            "copying it to huge pages",
        ),
    ],
)
def test_a_table_without_room_is_not_called_damaged(call: str, what: str, large: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LIMITED.format(call=call), str(large)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path(__file__).parents[2],
    )
    for word in ("table.safetensors", what, "memory is short", "1.07 GB cannot be had", "ulimit"):
        assert word in done.stdout, done.stdout


def test_only_want_of_memory_is_told_so() -> None:
    assert is_short_of_memory(MemoryError()) and is_short_of_memory(OSError(errno.ENOMEM, "no"))
    with pytest.raises(RuntimeError) as refused:
        torch.empty(2**60, dtype=torch.uint8)
    assert is_short_of_memory(refused.value)
    assert not is_short_of_memory(OSError(errno.ENOENT, "no"))
    assert not is_short_of_memory(RuntimeError("no"))
    assert not is_short_of_memory(ValueError("no"))


def test_without_a_limit_no_address_space_is_named() -> None:
    left, words = address_space_left(), str(memory_short("a copy", 5_000_000))
    assert words.startswith("a copy: memory is short: 5.00 MB cannot be had")
    assert ("ulimit" in words) == (left is not None)
    assert "cannot be had" not in str(memory_short("a load"))
