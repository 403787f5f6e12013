"""Figures of devices by name, each with its source.

Bandwidths are bytes a second in one direction. GPU figures are the makers' data sheets: NVIDIA A100
(2021), H100 (2023), H200 (2024), L4 (2023), L40S (2023) and A10 (2021) Tensor Core GPU data sheets,
and NVIDIA Blackwell data sheet (2024) for B200; PCI Express 4.0 and 5.0 x16 are 32 and 64 GB/s each
way; NVLink 3, 4 and 5 are half of the sheets' 600, 900 and 1,800 GB/s. Caches are the L2 sizes of
the architectures' white papers. A launch costs 5 us, the usual order on all of them.

`cpu` is one core of a 2.5 GHz server with 4 KiB pages: random 132-byte rows at 20 M/s, copies at 10
GB/s, and 17 us for a fused call over 26 tables, as measured with this project. `sharded-infer
calibrate` measures the present machine.

`host`, beside GPUs, is host memory that their kernels read over the link: PCI Express 5.0 x16, in
transfers of at least 64 bytes, and without a launch of its own.
"""

from dataclasses import dataclass

GB = 10**9
MB = 10**6


@dataclass(frozen=True, slots=True)
class DeviceModel:
    """A kind of device; bandwidths are in bytes a second.

    Attributes:
        kind: `cpu`, `cuda`, or `host`: pinned memory that a GPU reads.
        memory_bytes: all of its memory; 0: depends on the machine.
        host_bandwidth: ids from the host to the device.
        peer_bandwidth: pooled vectors to the tower on the same host; None: written straight into
            the tower's input.
        launch_seconds: fixed cost of one fused call.
        granule_bytes: minimum bytes moved by an access.
        cache_bytes: of the last cache before device memory.
    """

    kind: str
    memory_bytes: int
    memory_bandwidth: float
    host_bandwidth: float
    peer_bandwidth: float | None
    launch_seconds: float
    granule_bytes: int
    cache_bytes: int
    cache_bandwidth: float


def _cuda(memory: int, bandwidth: float, host: float, peer: float, cache: int) -> DeviceModel:
    # L2 moves 32-byte sectors; its bandwidth is taken as 3 x device memory's, the order that the
    # architectures' micro-benchmarks report.
    return DeviceModel("cuda", memory, bandwidth, host, peer, 5e-6, 32, cache, 3 * bandwidth)


DEVICE_MODELS: dict[str, DeviceModel] = {
    "cpu": DeviceModel("cpu", 0, 3.9 * GB, 10 * GB, None, 17e-6, 64, 32 * MB, 12 * GB),
    "host": DeviceModel("host", 0, 64 * GB, 64 * GB, None, 0.0, 64, 0, 64 * GB),
    "a10": _cuda(24 * GB, 600 * GB, 32 * GB, 32 * GB, 6 * MB),
    "a100": _cuda(80 * GB, 2039 * GB, 32 * GB, 300 * GB, 40 * MB),
    "h100": _cuda(80 * GB, 3350 * GB, 64 * GB, 450 * GB, 50 * MB),
    "h200": _cuda(141 * GB, 4800 * GB, 64 * GB, 450 * GB, 50 * MB),
    "b200": _cuda(180 * GB, 8000 * GB, 64 * GB, 900 * GB, 126 * MB),
    "l4": _cuda(24 * GB, 300 * GB, 32 * GB, 32 * GB, 48 * MB),
    "l40s": _cuda(48 * GB, 864 * GB, 32 * GB, 32 * GB, 96 * MB),
}
# A GPU named only cuda: the most common one for such models.
DEVICE_MODELS["cuda"] = DEVICE_MODELS["h100"]
