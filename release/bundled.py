"""Third-party parts of the wheels, and their versions."""

import re
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import ziglang

from release import openssl
from release.commands import ReleaseError
from release.toolchain import ROOT
from release.wheel import NGHTTP2


@dataclass(frozen=True, slots=True)
class Bundled:
    """A third-party part of the wheels.

    Attributes:
        licence: an SPDX expression.
        licence_file: below the repository's root; the wheels have it too.
        purl: package URL, without the version.
        cpe: vendor and product, by which vulnerabilities are listed.
    """

    name: str
    version: str
    licence: str
    licence_file: str
    purl: str
    cpe: tuple[str, str] | None = None


def bundled_parts() -> tuple[Bundled, ...]:
    """All of them; versions are read from the sources themselves."""
    zig = Path(ziglang.__file__).parent
    number = int(_found(zig / "lib/libcxx/include/__config", r"define _LIBCPP_VERSION (\d+)"))
    libcxx = f"{number // 10000}.{number // 100 % 100}.{number % 100}"
    xxhash = ".".join(
        _found(ROOT / "native/third_party/xxhash.h", rf"define XXH_VERSION_{part}\s+(\d+)")
        for part in ("MAJOR", "MINOR", "RELEASE")
    )
    llhttp = ".".join(
        _found(ROOT / "native/third_party/llhttp/llhttp.h", rf"define LLHTTP_VERSION_{part} (\d+)")
        for part in ("MAJOR", "MINOR", "PATCH")
    )
    return (
        Bundled(
            "openssl",
            openssl.VERSION,
            "Apache-2.0",
            "release/licenses/LICENSE.openssl",
            "pkg:github/openssl/openssl",
            ("openssl", "openssl"),
        ),
        Bundled(
            "nghttp2",
            _found(NGHTTP2 / "CMakeLists.txt", r"project\(nghttp2 VERSION ([\d.]+)"),
            "MIT",
            "native/transport/LICENSE.nghttp2",
            "pkg:github/nghttp2/nghttp2",
            ("nghttp2", "nghttp2"),
        ),
        Bundled(
            "libc++",
            libcxx,
            "Apache-2.0 WITH LLVM-exception",
            "release/licenses/LICENSE.llvm",
            "pkg:github/llvm/llvm-project",
        ),
        Bundled(
            "zig-compiler-rt",
            version("ziglang"),
            "MIT",
            "release/licenses/LICENSE.zig",
            "pkg:pypi/ziglang",
        ),
        Bundled(
            "xxhash",
            xxhash,
            "BSD-2-Clause",
            "native/third_party/LICENSE.xxhash",
            "pkg:github/cyan4973/xxhash",
        ),
        Bundled(
            "llhttp",
            llhttp,
            "MIT",
            "native/third_party/llhttp/LICENSE",
            "pkg:github/nodejs/llhttp",
            ("llhttp", "llhttp"),
        ),
        Bundled(
            "uplot",
            _found(ROOT / "serving/dashboard/static/vendor/README.md", r"uPlot ([\d.]+) "),
            "MIT",
            "serving/dashboard/static/vendor/LICENSE",
            "pkg:npm/uplot",
        ),
    )


def _found(file: Path, pattern: str) -> str:
    found = re.search(pattern, file.read_text())
    if found is None:
        raise ReleaseError(f"{file}: expected {pattern}")
    return found[1]
