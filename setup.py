"""What pyproject.toml cannot say: what is built if asked for, on all cores, for any Python."""

import copy
import os
import re
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from glob import glob
from itertools import count
from pathlib import Path
from typing import Any

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

# `make setup` sets it to 1.
VARIABLE = "SHARDED_INFER_BENCH"
# A folder of nghttp2's sources, for wheels that carry libnghttp2; else the system's is opened.
NGHTTP2 = "SHARDED_INFER_NGHTTP2"
# A folder with libssl.a and libcrypto.a of OpenSSL 3, for wheels that carry it; else the same.
OPENSSL = "SHARDED_INFER_OPENSSL"
_SERVING = "serving._native"
# More would save a second and take memory where a container has few of a machine's cores.
_MOST_COMPILERS = 8
# Python's own flags ask for debug information, which takes a third of the time, and for warnings.
_QUICK = ("-g0", "-w")
_ARCHIVES = ("libssl.a", "libcrypto.a")
_MACROS = (
    "BUILDING_NGHTTP2",
    "NGHTTP2_STATICLIB",
    "HAVE_ARPA_INET_H",
    "HAVE_CLOCK_GETTIME",
    "HAVE_DECL_CLOCK_MONOTONIC",
    "HAVE_NETINET_IN_H",
)


class BuildCompiledCode(build_ext):
    """Builds what pyproject.toml lists and, if asked, the load generator and others' libraries."""

    def finalize_options(self) -> None:
        """Adds the load generator, which opens libnghttp2 when it runs, and looks for sources."""
        if os.environ.get(VARIABLE) == "1":
            load_generator = Extension(
                "serving.bench._native",
                sources=["native/abi/serving_bench_layout.cpp", "native/load/http2_load.cpp"],
                language="c++",
                extra_compile_args=["-Inative", "-std=c++17", "-O3", "-fvisibility=hidden"],
                libraries=["dl"],
                optional=True,
            )
            self.distribution.ext_modules.append(load_generator)
        sources = os.environ.get(NGHTTP2)
        self._nghttp2 = Path(sources) / "lib" if sources else None
        if self._nghttp2 is not None and not (self._nghttp2 / "nghttp2_session.c").is_file():
            raise FileNotFoundError(f"{NGHTTP2}: {self._nghttp2} has no sources of nghttp2")
        built = os.environ.get(OPENSSL)
        # The one that needs the other comes first.
        self._openssl = [Path(built) / name for name in _ARCHIVES] if built else []
        for archive in self._openssl:
            if not archive.is_file():
                raise FileNotFoundError(f"{OPENSSL}: there is no {archive}")
        headers = [
            file for kind in ("h", "inc") for file in glob(f"native/**/*.{kind}", recursive=True)
        ]
        for extension in self.distribution.ext_modules:
            extension.depends += ["pyproject.toml", "setup.py", *headers]
        super().finalize_options()

    def get_ext_filename(self, fullname: str) -> str:
        """The file of one: ctypes opens it, so its name has no version of Python's."""
        return f"{fullname.replace('.', os.sep)}.so"

    def run(self) -> None:
        """Builds in place where that is asked for, and only what is older than its sources."""
        if self.inplace:
            # setuptools builds everything in a folder of its own, and copies it.
            super(build_ext, self).run()
        else:
            super().run()

    def build_extensions(self) -> None:
        """Builds all: their sources are compiled side by side, on all cores."""
        compile_in_turn = self.compiler.compile
        with ThreadPoolExecutor(min(os.cpu_count() or 1, _MOST_COMPILERS)) as pool:
            self.compiler.compile = _side_by_side(compile_in_turn, pool)
            super().build_extensions()

    def build_extension(self, ext: Extension) -> None:
        """Builds one; libnghttp2 and OpenSSL become parts of the one that serves."""
        if ext.name == _SERVING:
            if self._nghttp2 is not None:
                ext.define_macros.append(("SHARDED_INFER_LINKED_NGHTTP2", "1"))
                ext.extra_objects += self._built_nghttp2(self._nghttp2)
            if self._openssl:
                ext.define_macros.append(("SHARDED_INFER_LINKED_OPENSSL", "1"))
                ext.extra_objects += map(str, self._openssl)
            if ext.extra_objects:
                # Whoever asks for them wants no wheel without them, nor one of a build before.
                ext.optional, self.force = False, True
        # Some have a source in common, and other flags for it.
        apart = copy.copy(self)
        apart.build_temp = str(Path(self.build_temp) / ext.name)
        super(BuildCompiledCode, apart).build_extension(ext)

    def _built_nghttp2(self, folder: Path) -> list[str]:
        made = Path(self.build_temp) / "nghttp2"
        _write_version(folder, made / "nghttp2")
        objects: list[str] = self.compiler.compile(
            sorted(map(str, folder.glob("*.c"))),
            output_dir=str(made),
            include_dirs=[str(made), str(folder / "includes"), str(folder)],
            macros=[(name, "1") for name in _MACROS],
            # Hidden: another libnghttp2 of the process, such as curl's, stays apart.
            extra_postargs=["-O3", "-fvisibility=hidden"],
        )
        return objects


def _side_by_side(
    compile_in_turn: Callable[..., list[str]], pool: ThreadPoolExecutor
) -> Callable[..., list[str]]:
    """A compiler's `compile` that takes each source to the pool, and tells what is done."""
    numbers = count(1)

    def compile_one(source: str, **options: Any) -> str:
        flags = [*options.get("extra_postargs", ()), *_QUICK]
        if source.endswith(".c"):
            # An extension's flags are those of C++, whose standard Clang refuses for C.
            flags = [flag for flag in flags if not flag.startswith("-std=")]
        options["extra_postargs"] = flags
        (built,) = compile_in_turn([source], **options)
        number = next(numbers)
        if number % 10 == 0:
            print(f"compiled {number} files", file=sys.stderr, flush=True)  # noqa: T201
        return built

    def compile_all(sources: list[str], **options: Any) -> list[str]:
        return list(pool.map(lambda source: compile_one(source, **options), sources))

    return compile_all


def _write_version(folder: Path, target: Path) -> None:
    """Writes the header that nghttp2's own build makes; a release has it, its repository not."""
    template = (folder / "includes" / "nghttp2" / "nghttp2ver.h.in").read_text()
    found = re.search(
        r"project\(nghttp2 VERSION ([\d.]+)", (folder.parent / "CMakeLists.txt").read_text()
    )
    if found is None:
        raise ValueError(f"{NGHTTP2}: {folder.parent}/CMakeLists.txt has no version")
    major, minor, patch = map(int, found[1].split("."))
    number = f"0x{major:02x}{minor:02x}{patch:02x}"
    target.mkdir(parents=True, exist_ok=True)
    text = template.replace("@PACKAGE_VERSION@", found[1]).replace("@PACKAGE_VERSION_NUM@", number)
    (target / "nghttp2ver.h").write_text(text)


class BuildWheel(bdist_wheel):
    """Builds a wheel for every Python 3 of a platform: no part is linked to Python."""

    def get_tag(self) -> tuple[str, str, str]:
        """The wheel's tag."""
        return "py3", "none", super().get_tag()[2]


setup(cmdclass={"build_ext": BuildCompiledCode, "bdist_wheel": BuildWheel})
