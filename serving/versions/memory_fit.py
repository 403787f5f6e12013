"""Checks that a version fits in the available memory, before any of it is loaded."""

from sharded_infer.artifacts.file_pages import MOST_HUGE, whole_pages
from sharded_infer.artifacts.manifest import Manifest
from sharded_infer.artifacts.table_memory import TableMemory
from sharded_infer.byte_sizes import size_text
from sharded_infer.errors import CapacityError
from sharded_infer.specs.precision import Precision
from sharded_infer.towers.batch_sizes import KERNEL_BYTES
from sharded_infer.towers.host_products import ProductsOption, are_compiled, choose_products

# Packed for the matrix library, a tower takes a little more than its file: panels are padded.
_PACKED = 1.1
# During a load it is in memory twice more: as read, and as built.
_LOADING_COPIES = 2
# Bytes of a weight.
_WEIGHT_BYTES = {
    Precision.FP32: 4,
    Precision.TF32: 4,
    Precision.BF16: 2,
    Precision.FP16: 2,
    Precision.INT8: 1,
}


def row_bytes(manifest: Manifest, row_memory_bytes: int | None) -> int:
    """Bytes of the tables' rows in memory, with `row_memory_bytes` as their bound, if any."""
    bound = manifest.table_bytes if row_memory_bytes is None else row_memory_bytes
    return min(manifest.table_bytes, bound)


def held_bytes(
    manifest: Manifest,
    memory: TableMemory,
    processes: int,
    *,
    shares_copies: bool = False,
    row_memory_bytes: int | None = None,
    products: ProductsOption = ProductsOption.AUTO,
) -> int:
    """Bytes of a loaded version.

        tables and id maps + processes * (1.1 * tower + kernels)

    Only oneDNN's products have kernels. Mapped tables are in the page cache once. Unless
    `shares_copies`, a version loaded after the fork has a copy in huge pages for each worker.
    `row_memory_bytes` bounds rows in all processes; None: all are in memory.
    """
    each = memory is TableMemory.HUGE and not shares_copies
    rows = row_bytes(manifest, row_memory_bytes)
    tables = (rows + manifest.id_map_bytes) * (processes if each else 1)
    kernels = 0 if are_compiled(_running(manifest, products)) else KERNEL_BYTES
    return tables + processes * (round(_PACKED * _tower_bytes(manifest, products)) + kernels)


def needed_bytes(
    manifest: Manifest,
    memory: TableMemory,
    processes: int,
    *,
    shares_copies: bool = False,
    row_memory_bytes: int | None = None,
    products: ProductsOption = ProductsOption.AUTO,
) -> int:
    """Peak bytes for loading a version in a running server; see `held_bytes`."""
    held = held_bytes(
        manifest,
        memory,
        processes,
        shares_copies=shares_copies,
        row_memory_bytes=row_memory_bytes,
        products=products,
    )
    return held + processes * _LOADING_COPIES * _tower_bytes(manifest, products)


def choose_memory(
    manifest: Manifest, *, huge_page_bytes: int, copy_needs: int, available: int
) -> TableMemory:
    """Resolves "auto" for a version whose mapped tables fit in memory: `AUTO` (mapped) or `HUGE`.

    A copy is made if the files are not mapped by huge pages, and half of the memory is enough.

    Args:
        huge_page_bytes: of the mapped files.
        copy_needs: bytes for loading it with a copy.
        available: bytes of memory.
    """
    wanted = sum(whole_pages(manifest.files[name].bytes) for name in manifest.memory_files)
    if huge_page_bytes >= MOST_HUGE * wanted:
        return TableMemory.AUTO
    return TableMemory.HUGE if 2 * copy_needs <= available else TableMemory.AUTO


def check_fits(needed: int, available: int, spare: int, what: str) -> None:
    """Refuses a load, named `what`, that would leave too little memory.

    Args:
        spare: bytes that must stay free; 0 if nothing else is served yet.

    Raises:
        CapacityError: it does not fit; the message has the figures.
    """
    if needed + spare > available:
        kept = f" and {size_text(spare)} must stay free (--spare-mib)" if spare else ""
        raise CapacityError(
            f"{what} does not fit: it takes {size_text(needed)}{kept}, {size_text(available)} are "
            "available"
        )


def _tower_bytes(manifest: Manifest, option: ProductsOption) -> int:
    """Bytes of the tower in the running precision."""
    stored, published = manifest.files[manifest.tower.file].bytes, manifest.tower.precision
    return stored * _WEIGHT_BYTES[_running(manifest, option)] // _WEIGHT_BYTES[published]


def _running(manifest: Manifest, option: ProductsOption) -> Precision:
    """The running precision; the larger, where that is timed later."""
    chosen = choose_products(manifest.tower.precision, option)
    return Precision.FP32 if chosen is None else chosen.running
