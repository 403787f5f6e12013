"""Writes the ctypes modules of `native/abi/*.h`, and the tables that they are compared with.

`make abi` runs it. PACKAGE/abi/HEADER.py is a header's module; native/abi/PACKAGE_layout.cpp is a
table of sizes and offsets in each library. `--check` only says whether these files are stale.
"""

import re
import sys
from pathlib import Path
from zlib import crc32

from native.abi.declarations import Header, Type, read_header

ROOT = Path(__file__).parents[2]
# Headers of each library. Its package has their modules.
LIBRARIES = {
    "kernels": "attention dense ids lookup lookup_run lost_pages machine pair_biases pair_layers "
    "passes product row_steps tiers user_states",
    "quant": "encode",
    "sharded_infer": "device_bags",
    "serving": "calls client counting lookup_messages message_size model reader recording "
    "scheduler shares transport",
    "serving.bench": "load",
}
_PACKAGE = {name: package for package, names in LIBRARIES.items() for name in names.split()}
_SCALARS = {"bool": "c_bool", "char": "c_char", "double": "c_double", "float": "c_float"}
_WRITTEN = "written by native/abi/generate.py"
_WIDTH = 100


def render() -> dict[Path, str]:
    """Text of each file, by its path in the repository; raises HeaderError."""
    source = ROOT / "native" / "abi"
    paths = [path for path in sorted(source.glob("*.h")) if path.stem != "exported"]
    headers = {path.stem: read_header(path) for path in paths}
    if unlisted := headers.keys() ^ _PACKAGE.keys():
        sys.exit(f"headers and LIBRARIES of {__file__} differ: {', '.join(sorted(unlisted))}")
    files = {}
    for package, names in LIBRARIES.items():
        folder = Path(*package.split("."), "abi")
        files[folder / "__init__.py"] = (
            f'"""The compiled library of {package}; {_WRITTEN}."""\n\n'
            "from kernels.native_library import keeping_gil, load_library\n\n"
            f'LIBRARY = load_library("{package}")\nKEEPING_GIL = keeping_gil(LIBRARY)\n'
        )
        own = [headers[name] for name in names.split()]
        table = f"{package.replace('.', '_')}_layout.cpp"
        files[Path("native", "abi", table)] = layout_text(own)
        for header in own:
            files[folder / f"{header.name}.py"] = module_text(header, package)
    return files


def module_text(header: Header, package: str) -> str:
    """The Python module of a header of a package's library."""
    blocks = [_enum(name, numbers) for name, (_, numbers) in header.enums.items()]
    blocks += ["\n".join(f"{_upper(n)} = {v!r}" for n, v in header.constants.items())]
    for name, structure in header.structures.items():
        lines = [f'("{n}", {_ctype(header, kind)}),' for n, kind in structure.fields.items()]
        blocks += [f"class {name}(ctypes.Structure):\n    _fields_ = {_listed(lines, 1)}"]
    digests = [
        f"{name}: {_digest(structure.fields)}," for name, structure in header.structures.items()
    ]
    structures = "{" + _listed(digests, 0)[1:-1] + "}"
    checks = [f'check_layout(LIBRARY, "{header.name}", {_rest(header)}, {structures})']
    lines = [line for name in header.functions for line in _bindings(header, name)]
    blocks += ["\n".join(checks + lines)]
    text = "\n\n\n".join(block for block in blocks if block)
    return f"{_head(header, package, text)}\n\n\n{text}\n"


def _head(header: Header, package: str, text: str) -> str:
    words = set(re.findall(r"\w+", text))
    lines = [f'"""native/abi/{header.name}.h; {_WRITTEN}."""', "", "import ctypes"]
    if header.enums:
        lines += ["from enum import IntEnum"]
    libraries = sorted({"LIBRARY", "KEEPING_GIL"} & words)
    imports = [f"from {package}.abi import {', '.join(libraries)}"]
    for other in header.visible[1:]:
        if names := sorted(other.structures.keys() & words):
            imports += [f"from {_PACKAGE[other.name]}.abi.{other.name} import {', '.join(names)}"]
    functions = sorted({"check_layout", "function_of"} & words)
    imports += [f"from kernels.native_library import {', '.join(functions)}"]
    return "\n".join([*lines, "", *sorted(imports)])


def _enum(name: str, numbers: dict[str, int]) -> str:
    lines = [f"    {_upper(enumerator)} = {number}" for enumerator, number in numbers.items()]
    return "\n".join([f"class {name}(IntEnum):", *lines])


def _upper(name: str) -> str:
    """`kMostSteps` as MOST_STEPS."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.removeprefix("k")).upper()


def _ctype(header: Header, kind: Type, *, called: bool = False) -> str:
    """The ctypes type of a field, or of what a function is called with and returns."""
    owner = header.owner(kind.name)
    enum = header.enum(kind.name)
    if kind.pointers:
        if kind.name == "char" and kind.constant and kind.pointers == 1 and not kind.many:
            text = "ctypes.c_char_p"
        elif called and owner is not None and kind.pointers == 1 and not kind.many:
            text = f"ctypes.POINTER({kind.name})"
        else:
            text = "ctypes.c_void_p"
    elif owner is not None:
        text = kind.name
    elif enum is not None:
        text = _ctype(header, enum)
    elif kind.name in _SCALARS:
        text = f"ctypes.{_SCALARS[kind.name]}"
    else:
        is_function = any(kind.name in seen.function_types for seen in header.visible)
        text = "ctypes.c_void_p" if is_function else f"ctypes.c_{kind.name.removesuffix('_t')}"
    for size in reversed(kind.sizes):
        text = f"{text} * {size}" if " " not in text else f"({text}) * {size}"
    return text


def _bindings(header: Header, name: str) -> list[str]:
    function = header.functions[name]
    types = [
        "None" if function.result == Type("void") else _ctype(header, function.result, called=True),
        *(_ctype(header, kind, called=True) for kind in function.parameters.values()),
    ]
    short = name.removeprefix("sharded_infer_")
    bindings = {
        "EXPORTED": {short: "LIBRARY"},
        "EXPORTED_KEEPING_GIL": {short: "KEEPING_GIL"},
        "EXPORTED_BOTH_WAYS": {short: "LIBRARY", f"{short}_keeping_gil": "KEEPING_GIL"},
    }[function.marker]
    lines = []
    for bound, library in bindings.items():
        line = f'{bound} = function_of({library}, "{name}", {", ".join(types)})'
        if len(line) > _WIDTH:
            listed = "".join(f"    {argument},\n" for argument in (library, f'"{name}"', *types))
            line = f"{bound} = function_of(\n{listed})"
        lines.append(line)
    return lines


def _listed(lines: list[str], depth: int) -> str:
    indent = "    " * depth
    inside = "".join(f"{indent}    {line}\n" for line in lines)
    return f"(\n{inside}{indent})" if lines else "()"


def _digest(declared: object) -> str:
    """A number that changes with what was declared, if not with its comments."""
    return f"0x{crc32(repr(declared).encode()):08X}"


def _rest(header: Header) -> str:
    """The digest of all but the structures."""
    return _digest((header.enums, header.constants, header.functions))


def layout_text(headers: list[Header]) -> str:
    """The table of a library: for each header its length, digests, sizes and offsets."""
    lines = [f"// Sizes and offsets of structures, for Python; {_WRITTEN}.", "// clang-format off"]
    lines += [f'#include "abi/{header.name}.h"' for header in headers]
    lines += ['#include "abi/exported.h"', "", "#include <cstddef>", "#include <cstdint>", ""]
    lines += ['extern "C" {', ""]
    for header in headers:
        table = f"std::int64_t sharded_infer_layout_of_{header.name}[]"
        count = 1 + sum(2 + len(layout.fields) for layout in header.structures.values())
        lines += [f"EXPORTED extern const {table};", f"const {table} = {{"]
        lines += [f"    {count}, {_rest(header)},"]
        for structure in header.structures.values():
            name = structure.qualified
            lines += [f"    {_digest(structure.fields)}, sizeof({name}),"]
            lines += [f"    offsetof({name}, {field})," for field in structure.fields]
        lines += ["};", ""]
    return "\n".join([*lines, '}  // extern "C"', ""])


if __name__ == "__main__":
    files = render()
    stale = [
        path
        for path, text in files.items()
        if not (ROOT / path).is_file() or (ROOT / path).read_text() != text
    ]
    if "--check" in sys.argv:
        sys.exit(f"stale: {', '.join(map(str, stale))}: run make abi" if stale else 0)
    for path in stale:
        (ROOT / path).parent.mkdir(exist_ok=True)
        (ROOT / path).write_text(files[path])
