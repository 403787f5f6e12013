"""The reproducible source distribution."""

import gzip
import sys
import tarfile
from io import BytesIO
from pathlib import Path

from release.commands import run


def build_sdist(sources: Path, out: Path, epoch: int) -> Path:
    """Builds it in `out`, with files of the time `epoch`; `sources` gets build folders."""
    words = ("build", "--sdist", "--no-isolation", "--outdir", out, ".")
    run((sys.executable, "-m", *words), sources)
    (archive,) = out.glob("*.tar.gz")
    archive.write_bytes(_settled(archive.read_bytes(), epoch))
    return archive


def _settled(archive: bytes, epoch: int) -> bytes:
    """An archive with ordered files and without its builder and time."""
    plain = BytesIO()
    with (
        tarfile.open(fileobj=BytesIO(archive)) as source,
        tarfile.open(fileobj=plain, mode="w", format=tarfile.PAX_FORMAT) as target,
    ):
        for member in sorted(source.getmembers(), key=lambda member: member.name):
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mtime = epoch
            member.pax_headers = {}
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            target.addfile(member, source.extractfile(member) if member.isfile() else None)
    return gzip.compress(plain.getvalue(), mtime=0)
