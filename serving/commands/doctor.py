"""Checks of the machine and the installation."""

import importlib
import importlib.metadata
import importlib.util
import platform
import socket
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Annotated

import typer
from rich.table import Table

from kernels.abi.tiers import tier_reader
from kernels.errors import ShardedInferError
from kernels.machine import Feature, instruction_sets, machine
from serving.commands.console import JsonOption, print_result
from serving.host.addresses import LAST_PORT
from serving.host.installation import COMPILED_PACKAGES
from serving.transport.library import http2_text, tls_text, transport_refusal
from sharded_infer.artifacts.file_mapping import HUGE_PAGE_BYTES
from sharded_infer.engines.device.requirements import missing_for_gpus
from sharded_infer.specs.precision import Precision

OUR_DISTRIBUTION = "sharded-infer"
IMPORT_NAMES = ("kernels", "quant", "sharded_infer", "serving")
# FBGEMM is built against one release of torch (FBGEMM's release notes).
FBGEMM_OF_TORCH = {"2.13": "1.8", "2.12": "1.7", "2.11": "1.6"}


class Verdict(StrEnum):
    """Outcome of a check."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """Result of a check."""

    check: str
    verdict: Verdict
    detail: str


_Result = tuple[Verdict, str]


def examine(ports: Iterable[int], folder: Path = Path()) -> list[Finding]:
    """Run every check, for a server's TCP ports and the folder of its table files."""
    # This reads the list of files of every distribution: once for all names.
    owners = importlib.metadata.packages_distributions()
    return [
        *(Finding(name, *_outcome(check)) for name, check in _CHECKS.items()),
        Finding("table pages", *_mapped_pages(folder)),
        *(Finding(f"import {n}", *_import_name(n, owners.get(n, []))) for n in IMPORT_NAMES),
        *(Finding(f"port {port}", *_port(port)) for port in ports),
    ]


def _outcome(check: Callable[[], _Result]) -> _Result:
    try:
        return check()
    except ShardedInferError as error:
        return Verdict.PROBLEM, str(error)


def _python() -> _Result:
    verdict = Verdict.OK if sys.version_info >= (3, 11) else Verdict.PROBLEM
    return (verdict, f"{platform.python_version()}, 3.11 or later is needed")


def _torch() -> _Result:
    torch = importlib.import_module("torch")
    return (Verdict.OK, f"{torch.__version__}, {torch.get_num_threads()} intra-op threads")


def _fbgemm() -> _Result:
    torch_version = importlib.metadata.version("torch")
    wanted = FBGEMM_OF_TORCH.get(".".join(torch_version.split(".")[:2]))
    for name in ("fbgemm-gpu-cpu", "fbgemm-gpu"):
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        detail = f"{name} {version} beside torch {torch_version}"
        if wanted is None or not version.startswith(wanted):
            expected = f"{wanted}.x" if wanted else "a torch that is known here"
            return Verdict.PROBLEM, f"{detail}: expected {expected}"
        try:
            importlib.import_module("fbgemm_gpu")
        except (ImportError, OSError) as error:
            return Verdict.PROBLEM, f"{detail}: does not load: {error}"
        return Verdict.OK, detail
    return Verdict.PROBLEM, "not installed: int8 tables have no kernel"


def _cpu() -> _Result:
    here = machine()
    # On ARM the bit of VNNI means the dot product.
    renamed = {Feature.AVX512_VNNI: "dot product"} if here.is_arm else {}
    names = [renamed.get(bit, str(bit.name).lower()) for bit in here.processor]
    features = ", ".join(names) or "none"
    detail = f"{here.class_text}; features of the processor: {features}"
    if here.is_arm or Feature.AVX2 in here.processor:
        return Verdict.OK, detail
    slow = "It has no AVX2: everything works, slowly, with the baseline's kernels."
    return Verdict.NOTE, f"{detail}. {slow}"


def _products() -> _Result:
    host = importlib.import_module("sharded_infer.towers.host_products")
    ours = importlib.import_module("kernels.product")
    torch = importlib.import_module("torch")
    dtypes = {
        Precision.FP32: torch.float32,
        Precision.INT8: torch.int8,
        Precision.BF16: torch.bfloat16,
        Precision.FP16: torch.float16,
    }
    said: list[str] = []
    raised: list[str] = []
    here = machine()
    for precision, dtype in dtypes.items():
        chosen = host.choose_products(precision, host.ProductsOption.AUTO, here)
        if chosen is not None and chosen.running is not precision:
            raised.append(str(precision))
            continue
        compiled = dtype in ours.product_dtypes(here)
        by = f"ours ({ours.product_set(dtype, here).name.lower()})" if compiled else "oneDNN"
        timed = " where that is timed faster than fp32" if chosen is None else ""
        said.append(f"{precision} by {by}{timed}")
    if raised:
        said.append(f"{' and '.join(raised)} towers run in fp32")
    return Verdict.OK, ", ".join(said)


def _compiled() -> _Result:
    # Without these packages no command runs.
    return Verdict.OK, ", ".join(COMPILED_PACKAGES)


def _http2() -> _Result:
    if refusal := transport_refusal():
        return Verdict.PROBLEM, f"no server can run: {refusal}"
    return Verdict.OK, http2_text()


def _tls() -> _Result:
    if transport_refusal():
        return Verdict.PROBLEM, "no server can run"
    if text := tls_text():
        return Verdict.OK, text
    return Verdict.NOTE, "OpenSSL 3 is not installed: no TLS and no tokens"


def _kernels() -> _Result:
    sets = [variant.name.lower() for variant in instruction_sets()]
    return Verdict.OK, f"{sets[-1]} of {', '.join(sets)}"


def _gpus() -> _Result:
    cuda = importlib.import_module("torch").cuda
    if not cuda.is_available():
        return Verdict.NOTE, "no CUDA device: lookups run on processors"
    names = ", ".join(cuda.get_device_name(number) for number in range(cuda.device_count()))
    if missing := missing_for_gpus():
        return Verdict.PROBLEM, f"{names}: lookups need {'; '.join(missing)}"
    return Verdict.OK, names


def _huge_pages() -> _Result:
    path = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    try:
        text = path.read_text()
    except OSError:
        return Verdict.NOTE, "not known on this system"
    mode = text[text.find("[") + 1 : text.find("]")]
    return Verdict.NOTE if mode == "never" else Verdict.OK, f"transparent huge pages: {mode}"


def _row_reads() -> _Result:
    reader: str = tier_reader().decode()
    if reader == "io_uring":
        return Verdict.OK, reader
    detail = f"{reader}: io_uring is not allowed here; rows that lie in files are read more slowly"
    return Verdict.NOTE, detail


def _mapped_pages(folder: Path) -> _Result:
    where = folder.absolute()
    try:
        with NamedTemporaryFile(dir=folder, prefix=".sharded-infer-doctor-") as file:
            file.write(bytes(2 * HUGE_PAGE_BYTES))
            file.flush()
            pages = importlib.import_module("sharded_infer.artifacts.file_pages")
            are_large = pages.read_large(Path(file.name), lambda _: None)
    except OSError as error:
        return Verdict.NOTE, f"cannot be tried in {where}: {error.strerror}"
    if are_large:
        return Verdict.OK, f"files in {where} are mapped in 2 MiB pages"
    detail = (
        f"files in {where} are mapped in 4 KiB pages: --memory auto copies tables to 2 MiB pages "
        "if half of the memory is enough"
    )
    return Verdict.NOTE, detail


def _import_name(name: str, owners: Iterable[str]) -> _Result:
    others = sorted({owner for owner in owners if owner != OUR_DISTRIBUTION})
    if others:
        detail = f"{', '.join(others)} also installs it: use an environment of its own"
        return Verdict.PROBLEM, detail
    spec = importlib.util.find_spec(name)
    origin = spec.origin if spec is not None else None
    return Verdict.OK if origin else Verdict.PROBLEM, origin or "not importable"


def _port(port: int) -> _Result:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            return Verdict.PROBLEM, f"cannot be had: {error.strerror}"
    return Verdict.OK, "free"


_CHECKS = {
    "python": _python,
    "torch": _torch,
    "fbgemm": _fbgemm,
    "cpu": _cpu,
    "compiled": _compiled,
    "http2": _http2,
    "tls": _tls,
    "kernels": _kernels,
    "products": _products,
    "gpus": _gpus,
    "huge pages": _huge_pages,
    "row reads": _row_reads,
}


def doctor_command(
    port: Annotated[
        list[int] | None, typer.Option(help="Port to check; may be repeated.", min=0, max=LAST_PORT)
    ] = None,
    folder: Annotated[
        Path,
        typer.Option(
            help="Repository or cache: whether its files are mapped in 2 MiB pages is tried there.",
            exists=True,
            file_okay=False,
        ),
    ] = Path(),
    as_json: JsonOption = False,
) -> None:
    """Check the installation, the machine and the ports.

    Shows versions, whether FBGEMM fits torch, compiled libraries, CPU features, GPUs, the size of
    memory pages and whether other packages take our import names.
    """
    findings = examine(port or (8001, 8002), folder)
    problems = [finding for finding in findings if finding.verdict is Verdict.PROBLEM]
    table = Table("check", "verdict", "detail", box=None)
    for finding in findings:
        table.add_row(finding.check, finding.verdict, finding.detail)
    print_result([asdict(finding) for finding in findings], table, as_json=as_json)
    if problems:
        raise typer.Exit(1)
