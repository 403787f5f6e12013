import mmap
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from kernels.bags import Bags
from kernels.errors import LostMemoryError
from kernels.fused_tables import FusedTables
from kernels.mapped_file import MappedFile
from kernels.pooled_lookup import PooledLookup
from kernels.row_format import RowFormat

PAGE = mmap.PAGESIZE
ROWS, DIM = 600, 16  # of fp32: 64 bytes a row, nine pages and a half
SIZE = ROWS * 4 * DIM
BACKENDS = ("native", "fbgemm")


def mapped(path: Path, content: bytes) -> MappedFile:
    path.write_bytes(content)
    with path.open("rb") as file:
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        return MappedFile(path, file.fileno(), memoryview(mapping))


def lookup_of(file: MappedFile, backend: str) -> PooledLookup:
    memory = torch.frombuffer(file.mapping, dtype=torch.uint8)
    tables = FusedTables(memory, RowFormat.FP32, (0,), (ROWS,), (DIM,), (False,), file)
    return PooledLookup(tables, backend=backend)


def bag(row: int) -> Bags:
    return Bags(torch.tensor([row]), torch.tensor([[1]]), None)


def test_a_file_that_loses_pages_of_zeros_is_refused_at_once(tmp_path: Path) -> None:
    file = mapped(tmp_path / "index", b"\1" * PAGE + bytes(2 * PAGE))
    file.check()
    os.truncate(file.path, 1)
    with pytest.raises(LostMemoryError, match=f"1 bytes, {3 * PAGE} were mapped"):
        file.check()


@pytest.mark.filterwarnings("ignore:The given buffer is not writable")
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    "left", [0, 1, PAGE, SIZE // 2, SIZE - PAGE, SIZE - 4 * DIM, SIZE - 1], ids=str
)
def test_no_row_of_a_file_that_was_cut_is_given_out(
    backend: str, left: int, tmp_path: Path
) -> None:
    if backend == "fbgemm":
        pytest.importorskip("fbgemm_gpu")
    rows = torch.arange(1, ROWS * DIM + 1, dtype=torch.float32).view(ROWS, DIM)
    file = mapped(tmp_path / "table", rows.numpy().tobytes())
    lookup = lookup_of(file, backend)
    for row in (0, ROWS // 2, ROWS - 1):
        assert torch.equal(lookup(bag(row))[0], rows[row])
    os.truncate(file.path, left)
    for row in range(ROWS - 1, -1, -17):
        with pytest.raises(LostMemoryError, match=f"table: has become shorter .* {left} bytes"):
            lookup(bag(row))
    # Its bytes are there again, but the mapping is not what it was.
    file.path.write_bytes(rows.numpy().tobytes())
    anew = mapped(file.path, rows.numpy().tobytes())
    assert torch.equal(lookup_of(anew, backend)(bag(ROWS - 1))[0], rows[-1])


def test_zeros_at_the_end_of_a_file_hide_no_cut(tmp_path: Path) -> None:
    content = b"\1" * (2 * PAGE + 100) + b"\0" * 200
    for left in (len(content) - 100, len(content) - 200, len(content) - 201, 2 * PAGE, 5):
        file = mapped(tmp_path / "table", content)
        file.check()
        os.truncate(file.path, left)
        if left >= len(content) - 200:
            # What is read is what was there.
            file.check()
            assert file.mapping[:] == content
        else:
            with pytest.raises(LostMemoryError):
                file.check()
        with pytest.raises(LostMemoryError):
            file.check_size()


def test_a_mapping_that_is_freed_gives_its_place_back(tmp_path: Path) -> None:
    path = tmp_path / "table"
    path.write_bytes(b"\1" * 10)
    with path.open("rb") as opened:
        mapping = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
        # More than there are places.
        for _ in range(70_000):
            file = MappedFile(path, opened.fileno(), memoryview(mapping))
    os.truncate(path, 0)
    with pytest.raises(LostMemoryError):
        file.check()


FOREIGN = """
import faulthandler, mmap, os, sys
from pathlib import Path
from kernels.mapped_file import MappedFile

{before}
with open(sys.argv[1], "w+b") as file:
    file.write(bytes(range(1, 101)))
    file.flush()
    mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    ours = MappedFile(Path(sys.argv[1]), file.fileno(), memoryview(mapping))
with open(sys.argv[1] + ".other", "w+b") as file:
    file.write(bytes(range(1, 101)))
    file.flush()
    other = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
{what}
print("lives on")
"""


@pytest.mark.parametrize(
    ("before", "what", "code", "said"),
    [
        ("", "os.truncate(sys.argv[1], 0); ours.mapping[0]", 0, ""),
        ("", "os.truncate(sys.argv[1] + '.other', 0); other[0]", -signal.SIGBUS, ""),
        ("", "import signal; os.kill(os.getpid(), signal.SIGBUS)", -signal.SIGBUS, ""),
        (
            "faulthandler.enable()",
            "os.truncate(sys.argv[1] + '.other', 0); other[0]",
            -signal.SIGBUS,
            "Fatal Python error: Bus error",
        ),
        (
            "import signal; signal.signal(signal.SIGBUS, lambda *_: print('handled'))",
            "os.kill(os.getpid(), signal.SIGBUS)",
            0,
            "",
        ),
    ],
    ids=["ours", "another's", "sent", "with faulthandler", "with a handler in Python"],
)
def test_faults_of_others_end_as_they_did(
    before: str, what: str, code: int, said: str, tmp_path: Path
) -> None:
    program = FOREIGN.format(before=before, what=what)
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "file")],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert ("lives on" in done.stdout) is (code == 0)
    assert ("handled" in done.stdout) is ("handled" in before)
