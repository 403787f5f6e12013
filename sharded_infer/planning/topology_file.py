"""Topologies as users write them: `cpu:2`, a file, or `local`."""

import importlib
import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from kernels.wording import counted, did_you_mean
from sharded_infer.byte_sizes import parse_size
from sharded_infer.errors import InputError, PlanError
from sharded_infer.files.toml_file import read_toml
from sharded_infer.planning.device_models import DEVICE_MODELS, DeviceModel
from sharded_infer.planning.topology import Device, Disk, Topology, device_of

_PART = re.compile(
    r"(?P<card>[a-z][a-z0-9]*)(:(?P<count>[0-9]+))?(x(?P<size>[0-9]+(\.[0-9]+)?[KMGT]i?B))?"
)

MAX_RANKS = 4096
# Devices of NVIDIA's driver: on Linux, and on the Windows Subsystem for Linux.
_DRIVER = (Path("/dev/nvidiactl"), Path("/dev/dxg"))
# Of a GPU's memory, reserved for the tower, activations and the runtime when no size is given.
RESERVED_SHARE = 0.15


def parse_topology(text: str) -> Topology:
    """Parse `cpu:2`, `h100:8x70GB`, several of these joined by `+`, `local`, or a TOML file's name.

    An entry is a device's name (`device_models`), the number of ranks, and the bytes of tables that
    each may hold (GB is 1000^3, GiB 1024^3). Without a size, a GPU may hold its memory less 15%,
    and a CPU rank has no limit. `local` is this machine. Raises PlanError for an invalid topology
    or an unknown device.
    """
    if text.endswith(".toml"):
        return load_topology(Path(text))
    if text == "local":
        return local_topology()
    devices: list[Device] = []
    for part in text.split("+"):
        match = _PART.fullmatch(part.strip())
        if match is None:
            raise PlanError(
                f"topology {text!r}: {part!r} is not CARD:COUNT or CARD:COUNTxMEMORY, "
                "such as cpu:2 or h100:8x70GB"
            )
        model = _device_model(match["card"], f"topology {text!r}")
        count = int(match["count"] or 1)
        if not 1 <= count <= MAX_RANKS:
            raise PlanError(
                f"topology {text!r}: {counted(count, 'rank')}, expected 1 to {MAX_RANKS}"
            )
        memory = parse_size(match["size"], text) if match["size"] else _usable(model)
        devices += [device_of(model, memory_bytes=memory)] * count
    return Topology(text, tuple(devices))


def load_topology(path: Path) -> Topology:
    """Read a topology file.

        name = "two-hosts"
        network_bandwidth = 25e9
        [[devices]]
        card = "h100"          # the device's name; any of its figures may follow
        count = 8
        host = 0
        memory = "70GB"
        [front]                # if the tower runs on one host alone; see `FrontCosts`
        host = 0
        [disk]                 # see `disk_of`
        reads_per_second = 42000
        read_seconds = 190e-6

    Raises PlanError for a missing or non-TOML file, or an unknown or invalid field; names it.
    """
    fields = read_toml(path, f"topology {path}", PlanError)
    _disk(fields.pop("disk", None), path)
    groups = fields.pop("devices", None)
    if not isinstance(groups, list) or not groups:
        raise PlanError(f"topology {path}: expected [[devices]], at least one")
    devices: list[Device] = []
    for number, group in enumerate(groups, start=1):
        devices += _devices(group, f"topology {path}: devices {number}")
    if len(devices) > MAX_RANKS:
        raise PlanError(
            f"topology {path}: {counted(len(devices), 'rank')}, expected at most {MAX_RANKS}"
        )
    values = {"name": path.stem, **fields, "devices": [asdict(device) for device in devices]}
    try:
        topology: Topology = _strictly(TypeAdapter(Topology), values)
    except ValidationError as error:
        raise PlanError(f"topology {path}: {_first_problem(error)}") from error
    own = None if topology.front is None else topology.front.host
    hosts = sorted({device.host for device in devices})
    if own is not None and own not in hosts:
        raise PlanError(
            f"topology {path}: front.host: expected one of {', '.join(map(str, hosts))}, or none "
            f"for a front without rows, got {own}"
        )
    return topology


def disk_of(text: str) -> Disk | None:
    """The disk in a topology file, as `parse_topology` takes it; None if there is none.

    Raises PlanError as `load_topology`.
    """
    if not text.endswith(".toml"):
        return None
    path = Path(text)
    return _disk(read_toml(path, f"topology {path}", PlanError).get("disk"), path)


def _disk(fields: object, path: Path) -> Disk | None:
    if fields is None:
        return None
    if not isinstance(fields, dict):
        raise PlanError(f"topology {path}: disk: expected a table of fields, got {fields!r}")
    try:
        disk: Disk = _strictly(TypeAdapter(Disk), fields)
    except ValidationError as error:
        raise PlanError(f"topology {path}: disk.{_first_problem(error)}") from error
    return disk


def _devices(group: object, where: str) -> list[Device]:
    if not isinstance(group, dict):
        raise PlanError(f"{where}: expected a table of fields, got {group!r}")
    own = dict(group)
    model = _device_model(str(own.pop("card", "cpu")), where)
    count = own.pop("count", 1)
    if type(count) is not int or not 1 <= count <= MAX_RANKS:
        raise PlanError(f"{where}: count {count!r}, expected 1 to {MAX_RANKS}")
    if "memory" in own:
        try:
            own["memory_bytes"] = parse_size(str(own.pop("memory")), f"{where}: memory")
        except InputError as error:
            raise PlanError(str(error)) from error
    adapter = TypeAdapter(Device)
    fields = adapter.dump_python(device_of(model, memory_bytes=_usable(model))) | own
    try:
        return [_strictly(adapter, fields)] * count
    except ValidationError as error:
        raise PlanError(f"{where}: {_first_problem(error)}") from error


def _strictly(adapter: TypeAdapter[Any], fields: dict[str, Any]) -> Any:
    # As JSON, whose strict mode takes lists for tuples, and rejects `true` as a number.
    return adapter.validate_json(json.dumps(fields, default=str), strict=True)


def _device_model(name: str, where: str) -> DeviceModel:
    if name not in DEVICE_MODELS:
        raise PlanError(
            f"{where}: unknown device {name!r}, expected one of {', '.join(DEVICE_MODELS)}"
            f"{did_you_mean(name, DEVICE_MODELS)}"
        )
    return DEVICE_MODELS[name]


def _usable(model: DeviceModel) -> int | None:
    return round(model.memory_bytes * (1 - RESERVED_SHARE)) or None


def _first_problem(error: ValidationError) -> str:
    problem = error.errors(include_url=False)[0]
    place = ".".join(map(str, problem["loc"]))
    return f"{place}: {problem['msg']}, got {problem['input']!r}"


def local_topology() -> Topology:
    """The topology `local`: the machine's GPUs, or one CPU rank with the free memory.

    15% are reserved for the tower, activations and the runtime.
    """
    # Without NVIDIA's driver there are no GPUs, so the import of torch, which takes seconds, is
    # skipped.
    torch = importlib.import_module("torch") if any(map(Path.exists, _DRIVER)) else None
    if torch is not None and torch.cuda.is_available():
        devices = []
        for index in range(torch.cuda.device_count()):
            properties = torch.cuda.get_device_properties(index)
            name = properties.name.lower()
            model = next(
                (model for key, model in DEVICE_MODELS.items() if key in name),
                DEVICE_MODELS["cuda"],
            )
            usable_bytes = round(properties.total_memory * (1 - RESERVED_SHARE))
            devices.append(device_of(model, memory_bytes=usable_bytes))
        return Topology("local", tuple(devices))
    free = _available_bytes()
    usable = None if free is None else round(free * (1 - RESERVED_SHARE))
    return Topology("local", (device_of(DEVICE_MODELS["cpu"], memory_bytes=usable),))


def _available_bytes() -> int | None:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return int(fields["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in fields else None
