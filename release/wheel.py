"""A wheel for every Python of a processor family, with libnghttp2 and OpenSSL inside."""

import json
import re
import sys
from pathlib import Path

from release.commands import ReleaseError, run
from release.openssl import built_openssl
from release.toolchain import GLIBC, ROOT, Processor, environment

NGHTTP2 = ROOT / "build" / "nghttp2"


def build_wheel(sources: Path, out: Path, processor: Processor, epoch: int) -> Path:
    """Builds a wheel in `out`, with files of the time `epoch` (since 1970), and checks it.

    The build leaves folders in `sources`.

    Raises:
        ReleaseError: something does not compile, or needs what other machines lack.
    """
    if not NGHTTP2.is_dir():
        raise ReleaseError(f"there is no {NGHTTP2}: make nghttp2 brings its sources")
    variables = environment(processor, epoch) | {
        "SHARDED_INFER_NGHTTP2": str(NGHTTP2),
        "SHARDED_INFER_OPENSSL": str(built_openssl(processor)),
    }
    option = f"--config-setting=--build-option=--plat-name={processor.platform}"
    words = ("build", "--wheel", "--no-isolation", option, "--outdir", out, ".")
    run((sys.executable, "-m", *words), sources, variables)
    (wheel,) = out.glob(f"*-py3-none-{processor.platform}.whl")
    check_wheel(wheel, processor)
    return wheel


def check_wheel(wheel: Path, processor: Processor) -> None:
    """Checks with auditwheel that a wheel fits its name.

    Raises ReleaseError if it needs a newer glibc, or a library that systems may lack.
    """
    told = json.loads(run([sys.executable, "-m", "auditwheel", "show", "--json", wheel], ROOT))
    found = re.fullmatch(rf"manylinux_(\d+)_(\d+)_{processor}", told["overall_tag"])
    most = tuple(map(int, GLIBC.split(".")))
    if found is None or (int(found[1]), int(found[2])) > most or told["external_libs"]:
        raise ReleaseError(
            f"{wheel.name}: auditwheel says {told['overall_tag']}, external libraries "
            f"{sorted(told['external_libs'])}, symbols {told['versioned_symbols']}"
        )
