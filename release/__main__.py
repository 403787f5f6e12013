"""Makes all files of a release: `make release`."""

import shutil
import sys
from argparse import ArgumentParser
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path

from release.commands import ReleaseError
from release.sbom import sbom_text
from release.sdist import build_sdist
from release.source_tree import check_committed, commit_epoch, copied_tree, project_version
from release.toolchain import ROOT, Processor
from release.wheel import build_wheel


def make_release(out: Path, processors: Iterable[Processor] = Processor) -> None:
    """Makes the wheels, the source distribution, the SBOM and the checksums.

    `out` becomes the folder of these files alone. Raises ReleaseError if this checkout cannot be
    released.
    """
    epoch = commit_epoch()
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    wheels = []
    for processor in processors:
        with copied_tree() as sources:
            wheels.append(build_wheel(sources, out, processor, epoch))
    with copied_tree() as sources:
        build_sdist(sources, out, epoch)
    sbom = out / f"sharded_infer-{project_version()}.cdx.json"
    sbom.write_text(sbom_text(wheels, epoch))
    lines = [
        f"{sha256(file.read_bytes()).hexdigest()}  {file.name}" for file in sorted(out.iterdir())
    ]
    (out / "SHA256SUMS").write_text("\n".join(lines) + "\n")


def main() -> None:
    """Makes a release and prints its files."""
    parser = ArgumentParser(prog="python -m release", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="Folder; it is emptied.")
    out = parser.parse_args().out
    try:
        check_committed()
        make_release(out)
    except ReleaseError as error:
        sys.exit(f"error: {error}")
    for file in sorted(out.iterdir()):
        print(f"{file.stat().st_size:>12,}  {file.name}")


if __name__ == "__main__":
    main()
