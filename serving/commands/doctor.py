"""Checks of the machine and the installation."""

import importlib
import importlib.metadata
import importlib.util
import platform
import socket
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Annotated

import typer
from rich.table import Table

from kernels.errors import ShardedInferError
from kernels.machine import Feature, machine
from serving.commands.console import OUT, print_json
from serving.commands.options.json_option import JsonOption
from serving.host.addresses import LAST_PORT
from serving.host.installation import COMPILED_PACKAGES
from serving.transport.library import transport_library, transport_refusal
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


def examine(ports: Iterable[int], folder: Path = Path()) -> list[Finding]:
    """Run every check, for a server's TCP ports and the folder of its table files."""
    checks = (
        _python,
        _torch,
        _fbgemm,
        _cpu,
        _compiled,
        _http2,
        _tls,
        _kernels,
        _products,
        _gpus,
        _huge_pages,
        _row_reads,
    )
    # This reads the list of files of every distribution: once for all names.
    owners = importlib.metadata.packages_distributions()
    return [
        *(check() for check in checks),
        _mapped_pages(folder),
        *(_import_name(name, owners.get(name, [])) for name in IMPORT_NAMES),
        *(_port(port) for port in ports),
    ]


def _python() -> Finding:
    verdict = Verdict.OK if sys.version_info >= (3, 11) else Verdict.PROBLEM
    return Finding("python", verdict, f"{platform.python_version()}, 3.11 or later is needed")


def _torch() -> Finding:
    torch = importlib.import_module("torch")
    return Finding(
        "torch", Verdict.OK, f"{torch.__version__}, {torch.get_num_threads()} intra-op threads"
    )


def _fbgemm() -> Finding:
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
            return Finding("fbgemm", Verdict.PROBLEM, f"{detail}: expected {expected}")
        try:
            importlib.import_module("fbgemm_gpu")
        except (ImportError, OSError) as error:
            return Finding("fbgemm", Verdict.PROBLEM, f"{detail}: does not load: {error}")
        return Finding("fbgemm", Verdict.OK, detail)
    return Finding("fbgemm", Verdict.PROBLEM, "not installed: int8 tables have no kernel")


def _cpu() -> Finding:
    try:
        here = machine()
    except ShardedInferError as error:
        return Finding("cpu", Verdict.PROBLEM, str(error))
    # On ARM the bit of VNNI means the dot product.
    renamed = {Feature.AVX512_VNNI: "dot product"} if here.is_arm else {}
    names = [renamed.get(bit, str(bit.name).lower()) for bit in here.processor]
    features = ", ".join(names) or "none"
    detail = f"{here.class_text}; features of the processor: {features}"
    if here.is_arm or Feature.AVX2 in here.processor:
        return Finding("cpu", Verdict.OK, detail)
    slow = "It has no AVX2: everything works, slowly, with the baseline's kernels."
    return Finding("cpu", Verdict.NOTE, f"{detail}. {slow}")


def _products() -> Finding:
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
    try:
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
    except ShardedInferError as error:
        return Finding("products", Verdict.PROBLEM, str(error))
    if raised:
        said.append(f"{' and '.join(raised)} towers run in fp32")
    return Finding("products", Verdict.OK, ", ".join(said))


def _compiled() -> Finding:
    # Without these packages no command runs.
    return Finding("compiled", Verdict.OK, ", ".join(COMPILED_PACKAGES))


def _http2() -> Finding:
    if refusal := transport_refusal():
        return Finding("http2", Verdict.PROBLEM, f"no server can run: {refusal}")
    return Finding("http2", Verdict.OK, transport_library().http2_text())


def _tls() -> Finding:
    if transport_refusal():
        return Finding("tls", Verdict.PROBLEM, "no server can run")
    if text := transport_library().tls_text():
        return Finding("tls", Verdict.OK, text)
    detail = "OpenSSL 3 is not installed: no TLS and no tokens"
    return Finding("tls", Verdict.NOTE, detail)


def _kernels() -> Finding:
    machine = importlib.import_module("kernels.machine")
    try:
        found = [one.name.lower() for one in machine.instruction_sets()]
    except ShardedInferError as error:
        return Finding("kernels", Verdict.PROBLEM, str(error))
    return Finding("kernels", Verdict.OK, f"{found[-1]} of {', '.join(found)}")


def _gpus() -> Finding:
    cuda = importlib.import_module("torch").cuda
    if not cuda.is_available():
        return Finding("gpus", Verdict.NOTE, "no CUDA device: lookups run on processors")
    names = ", ".join(cuda.get_device_name(number) for number in range(cuda.device_count()))
    if missing := missing_for_gpus():
        return Finding("gpus", Verdict.PROBLEM, f"{names}: lookups need {'; '.join(missing)}")
    return Finding("gpus", Verdict.OK, names)


def _huge_pages() -> Finding:
    path = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    try:
        text = path.read_text()
    except OSError:
        return Finding("huge pages", Verdict.NOTE, "not known on this system")
    mode = text[text.find("[") + 1 : text.find("]")]
    verdict = Verdict.NOTE if mode == "never" else Verdict.OK
    return Finding("huge pages", verdict, f"transparent huge pages: {mode}")


def _row_reads() -> Finding:
    try:
        reader: str = importlib.import_module("kernels.tiers.native_tiers").reader_name()
    except ShardedInferError as error:
        return Finding("row reads", Verdict.NOTE, str(error))
    if reader == "io_uring":
        return Finding("row reads", Verdict.OK, reader)
    detail = f"{reader}: io_uring is not allowed here; rows that lie in files are read more slowly"
    return Finding("row reads", Verdict.NOTE, detail)


def _mapped_pages(folder: Path) -> Finding:
    check, where = "table pages", folder.absolute()
    try:
        with NamedTemporaryFile(dir=folder, prefix=".sharded-infer-doctor-") as file:
            file.write(bytes(2 * HUGE_PAGE_BYTES))
            file.flush()
            pages = importlib.import_module("sharded_infer.artifacts.file_pages")
            found = pages.read_large(Path(file.name), lambda _: None)
    except OSError as error:
        return Finding(check, Verdict.NOTE, f"cannot be tried in {where}: {error.strerror}")
    if found:
        return Finding(check, Verdict.OK, f"files in {where} are mapped in 2 MiB pages")
    detail = (
        f"files in {where} are mapped in 4 KiB pages: --memory auto copies tables to 2 MiB pages "
        "if half of the memory is enough"
    )
    return Finding(check, Verdict.NOTE, detail)


def _import_name(name: str, owners: Iterable[str]) -> Finding:
    others = sorted({owner for owner in owners if owner != OUR_DISTRIBUTION})
    check = f"import {name}"
    if others:
        return Finding(
            check,
            Verdict.PROBLEM,
            f"{', '.join(others)} also installs it: use an environment of its own",
        )
    spec = importlib.util.find_spec(name)
    origin = spec.origin if spec is not None else None
    return Finding(check, Verdict.OK if origin else Verdict.PROBLEM, origin or "not importable")


def _port(port: int) -> Finding:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            return Finding(f"port {port}", Verdict.PROBLEM, f"cannot be had: {error.strerror}")
    return Finding(f"port {port}", Verdict.OK, "free")


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
    if as_json:
        fields = [{"check": f.check, "verdict": f.verdict, "detail": f.detail} for f in findings]
        print_json(fields)
    else:
        table = Table("check", "verdict", "detail", box=None)
        for finding in findings:
            table.add_row(finding.check, finding.verdict, finding.detail)
        OUT.print(table)
    if problems:
        raise typer.Exit(1)
