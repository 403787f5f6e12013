"""The files of a release as one archive, whose bytes depend on theirs alone."""

import atexit
import io
import lzma
import shutil
import tarfile
import tempfile
from functools import cache
from pathlib import Path

_SUFFIX = ".tar.xz"


def pack(folder: Path, archive: Path) -> None:
    """Writes all files of a folder, sorted by name, without times and owners."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                member = tarfile.TarInfo(path.relative_to(folder).as_posix())
                member.size = path.stat().st_size
                with path.open("rb") as file:
                    tar.addfile(member, file)
    archive.write_bytes(lzma.compress(packed.getvalue(), preset=9))


def archive_of(folder: Path, release: str) -> Path:
    return folder / f"{release}{_SUFFIX}"


def releases_in(folder: Path) -> list[str]:
    """The releases that a folder has archives of."""
    return [path.name.removesuffix(_SUFFIX) for path in folder.glob(f"*{_SUFFIX}")]


@cache
def unpacked(archive: Path) -> Path:
    """A folder with an archive's files, for this process; never to be changed."""
    home = Path(tempfile.mkdtemp(prefix="corpus-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    with tarfile.open(archive) as tar:
        tar.extractall(home, filter="data")
    return home
