"""OpenSSL, built from its sources as a part of the wheels."""

import hashlib
import os
import shutil
import tarfile
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

from release.commands import ReleaseError, run
from release.toolchain import ROOT, Processor, environment, toolchain_text

# Of the series with support until April 2030. For another version, change both lines.
VERSION = "3.5.7"
SHA256 = "a8c0d28a529ca480f9f36cf5792e2cd21984552a3c8e4aa11a24aa31aeac98e8"
# The project's own archive, and Debian's copy of it, which has the same bytes.
_SOURCES = (
    f"https://github.com/openssl/openssl/releases/download/openssl-{VERSION}/openssl-{VERSION}.tar.gz",
    f"http://deb.debian.org/debian-security/pool/updates/main/o/openssl/openssl_{VERSION}.orig.tar.gz",
)
_SECONDS = 60
# TLS for sockets and SHA-256 are used. All else is left out: attack surface, and unrequested
# actions, such as the system's configuration files, opened modules, functions at the process's end.
_OPTIONS = (
    *("no-shared", "no-apps", "no-docs", "no-tests", "no-autoload-config", "no-pinshared"),
    *("no-atexit", "no-dso", "no-engine", "no-module", "no-legacy"),
    *("no-cmp", "no-cms", "no-comp", "no-ct", "no-dtls", "no-ml-dsa", "no-psk", "no-quic"),
    *("no-slh-dsa", "no-srp", "no-ssl-trace", "no-ts"),
    # Hidden, so that Python's own OpenSSL stays separate.
    *("--libdir=lib", "--openssldir=/etc/ssl", "-fvisibility=hidden"),
)
_TARGETS = {Processor.X86_64: "linux-x86_64", Processor.AARCH64: "linux-aarch64"}


def built_openssl(processor: Processor) -> Path:
    """Folder with a processor's archives, built if missing.

    Raises ReleaseError if the sources are unavailable, differ, or do not compile.
    """
    recipe = "\n".join((SHA256, toolchain_text(), *_OPTIONS))
    name = f"openssl-{VERSION}-{hashlib.sha256(recipe.encode()).hexdigest()[:8]}-{processor}"
    folder = ROOT / "build" / name
    if not folder.is_dir():
        making = folder.with_name(f"{name}.making")
        shutil.rmtree(making, ignore_errors=True)
        with tarfile.open(_archive()) as archive:
            archive.extractall(making, filter="data")
        (source,) = making.iterdir()
        # The only date in its banner and texts is this release's.
        variables = environment(processor, epoch=0) | {"CFLAGS": "", "CXXFLAGS": ""}
        run(["./Configure", _TARGETS[processor], *_OPTIONS], source, variables)
        run(["make", f"-j{os.cpu_count()}", "build_libs"], source, variables)
        for archived in source.glob("*.a"):
            archived.rename(making / archived.name)
        shutil.rmtree(source)
        making.rename(folder)
    return folder


def _archive() -> Path:
    target = ROOT / "build" / f"openssl-{VERSION}.tar.gz"
    if not target.is_file():
        target.parent.mkdir(exist_ok=True)
        content = _download()
        if (got := hashlib.sha256(content).hexdigest()) != SHA256:
            raise ReleaseError(f"OpenSSL {VERSION}: expected SHA-256 {SHA256}, got {got}")
        target.write_bytes(content)
    return target


def _download() -> bytes:
    failures = []
    for url in _SOURCES:
        try:
            with urlopen(url, timeout=_SECONDS) as response:  # noqa: S310 - the URLs above
                content: bytes = response.read()
                return content
        except (URLError, OSError) as error:
            failures.append(f"{url}: {error}")
    raise ReleaseError("\n".join(failures))
