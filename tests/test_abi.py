"""The border of Python and C++: `native/abi/`, and the modules that are generated from it."""

import ctypes
import sys
from pathlib import Path
from typing import Any

import pytest

from kernels.errors import CompiledCodeError
from kernels.native_library import keeping_gil
from native.abi.declarations import HeaderError, read_header
from native.abi.generate import layout_text, module_text
from tests.docker.dockerfile import output_of

ROOT = Path(__file__).parents[1]
HEADER = """
#pragma once
#include <cstdint>

#include "abi/exported.h"

namespace sharded_infer::calls {

class Queue;
constexpr std::int64_t kMostOutputs = 4, kTexts = 2 * kMostOutputs + 1;
enum Kind : std::int32_t { kPlain, kWithStrings = 5, kLast };
using Finish = void (*)(void* context, std::int64_t call);

struct Text {
  const char* data;
  std::int64_t bytes;
};

struct Call {
  Text texts[kTexts][2];
  const Text* more;
  Call* next;
  Queue* queue;
  Finish finish;
  std::uint8_t flag, other;  // a comment; with a semicolon
  Kind kind;
  double seconds;
  bool is_late() const;
};

}  // namespace sharded_infer::calls

extern "C" {
// The sum of a call's kind and of numbers.
EXPORTED std::int64_t sharded_infer_sum(const sharded_infer::calls::Call* call,
                                        const std::int64_t numbers[], std::int32_t count);
EXPORTED_BOTH_WAYS void sharded_infer_set(std::uint8_t* out, std::uint8_t value);
EXPORTED_KEEPING_GIL const sharded_infer::calls::Text* sharded_infer_text();
}
"""
SOURCE = """
#include "abi/sample.h"
using namespace sharded_infer::calls;
static const Text kText{"text", 4};
extern "C" {
std::int64_t sharded_infer_sum(const Call* call, const std::int64_t* numbers, std::int32_t count) {
  std::int64_t sum = call->kind;
  for (std::int32_t at = 0; at < count; ++at) sum += numbers[at];
  return sum;
}
void sharded_infer_set(std::uint8_t* out, std::uint8_t value) { *out = value; }
const Text* sharded_infer_text() { return &kText; }
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("library")
    header = folder / "abi" / "sample.h"
    header.parent.mkdir()
    header.write_text(HEADER)
    (folder / "sample.cpp").write_text(SOURCE + layout_text([read_header(header)]))
    built = folder / "library.so"
    options = ("-std=c++17", "-shared", "-fPIC", "-fvisibility=hidden", "-Wall", "-Werror")
    output_of(
        "g++", *options, f"-I{folder}", f"-I{ROOT}/native", folder / "sample.cpp", "-o", built
    )
    return ctypes.CDLL(str(built))


def _module(library: ctypes.CDLL, folder: Path, text: str = HEADER) -> dict[str, Any]:
    """The names of the header's module, with the library in place of the package's."""
    (folder / "sample.h").write_text(text)
    module = module_text(read_header(folder / "sample.h"), "kernels")
    names: dict[str, Any] = {"LIBRARY": library, "KEEPING_GIL": keeping_gil(library)}
    imported = "from kernels.abi import KEEPING_GIL, LIBRARY\n"
    assert imported in module
    exec(module.replace(imported, ""), names)  # noqa: S102 - what the generator wrote
    return names


def test_the_committed_modules_and_tables_are_what_the_headers_say() -> None:
    output_of(sys.executable, "-m", "native.abi.generate", "--check", cwd=ROOT)


def test_python_fills_structures_and_calls_functions_of_a_header(
    library: ctypes.CDLL, tmp_path: Path
) -> None:
    sample = _module(library, tmp_path)
    assert (sample["MOST_OUTPUTS"], sample["TEXTS"]) == (4, 9)
    assert {kind.name: kind.value for kind in sample["Kind"]} == {
        "PLAIN": 0,
        "WITH_STRINGS": 5,
        "LAST": 6,
    }
    call = sample["Call"](kind=sample["Kind"].WITH_STRINGS, seconds=0.5)
    call.texts[8][1].data = b"last"
    numbers = (ctypes.c_int64 * 3)(1, 2, 3)
    assert (
        sample["sum"](call, numbers, 3) == sample["sum"](call, ctypes.addressof(numbers), 3) == 11
    )
    out = ctypes.c_uint8()
    for number, set_value in enumerate((sample["set"], sample["set_keeping_gil"])):
        set_value(ctypes.byref(out), number)
        assert out.value == number
    assert sample["text"]().contents.data == b"text"
    with pytest.raises(ctypes.ArgumentError):
        sample["sum"](out, numbers, 3)


@pytest.mark.parametrize(
    ("before", "after", "stale"),
    [
        ("flag, other", "other, flag", "Call"),
        ("double seconds", "std::int64_t seconds", "Call"),
        ("std::int64_t bytes;", "std::int64_t bytes, more;", "Text"),
        ("kLast", "kOther, kLast", "functions, constants or enums"),
        ("std::int32_t count", "std::int64_t count", "functions, constants or enums"),
    ],
)
def test_a_library_that_was_built_with_another_header_is_refused(
    library: ctypes.CDLL, tmp_path: Path, before: str, after: str, stale: str
) -> None:
    assert before in HEADER
    with pytest.raises(CompiledCodeError, match=f"other {stale} of native/abi/sample.h: build it"):
        _module(library, tmp_path, HEADER.replace(before, after))


def test_a_library_without_the_header_is_refused(library: ctypes.CDLL, tmp_path: Path) -> None:
    (tmp_path / "other.h").write_text(HEADER)
    module = module_text(read_header(tmp_path / "other.h"), "kernels")
    names = {"LIBRARY": library, "KEEPING_GIL": library}
    with pytest.raises(CompiledCodeError, match="other native/abi/other.h: build it again"):
        exec(module.replace("from kernels.abi import KEEPING_GIL, LIBRARY\n", ""), names)  # noqa: S102


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("struct A { std::vector<int> a; };", "sample.h:1: unknown type vector"),
        ("struct A {\n  int a;\n};", "sample.h:2: unknown type int"),
        ("struct A { double a = 1.0; };", "a: Python begins with zeros"),
        ("struct A { double a[kSize]; };", "unknown constant kSize"),
        ("class B;\nstruct A { B b; };", "sample.h:2: B has no size: expected a pointer"),
        ("struct A { double a; int64_t a() { return 0; } };", "expected ;, got {"),
        ("struct A { double a; ", "expected more, got the end of the file"),
        ("int add(int a);", "expected a declaration"),
        ("EXPORTED void add(double a);", "expected a name that begins with sharded_infer_"),
        ('#include "base/ids.h"', "expected an include of abi/"),
        ("#define A 1", "expected an include of abi/"),
    ],
)
def test_a_header_that_ctypes_cannot_describe_is_refused_with_its_line(
    text: str, message: str, tmp_path: Path
) -> None:
    (tmp_path / "sample.h").write_text(text)
    with pytest.raises(HeaderError, match=message.replace("(", r"\(")):
        read_header(tmp_path / "sample.h")
