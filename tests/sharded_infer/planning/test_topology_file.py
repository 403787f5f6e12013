from pathlib import Path

import pytest

from sharded_infer.errors import PlanError
from sharded_infer.planning.device_models import DEVICE_MODELS
from sharded_infer.planning.topology import Device, Topology
from sharded_infer.planning.topology_file import parse_topology


@pytest.mark.parametrize(
    ("text", "memories"),
    [
        ("cpu", [None]),
        ("cpu:1", [None]),
        ("cpu:3", [None] * 3),
        ("cpu:2x16GB", [16 * 1000**3] * 2),
        ("cpu:1x1.5GiB", [3 * 2**29]),
        ("cpux2KB", [2000]),
        ("cpu:1x1KiB+cpu:2x1MB", [1024, 10**6, 10**6]),
        ("cpu:1x1TB + cpu", [10**12, None]),
    ],
)
def test_ranks_and_their_memory_are_read(text: str, memories: list[int | None]) -> None:
    assert parse_topology(text) == Topology(
        text, tuple(Device("cpu", memory_bytes=m) for m in memories)
    )


@pytest.mark.parametrize("text", ["", "cpu:", "2", "cpu:2x", "cpu:2x16", "cpu:-1", "cpu:2x16XB"])
def test_what_does_not_read_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(PlanError, match=f"topology {text!r}: .* such as cpu:2 or h100:8x70GB"):
        parse_topology(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tpu:2", "unknown device 'tpu', expected one of cpu"),
        ("cpu:0", "0 ranks, expected 1 to 4096"),
        ("cpu:4097", "4097 ranks, expected 1 to 4096"),
        ("cpu:1x1.2.3GB", "'cpu:1x1.2.3GB' is not CARD:COUNT"),
        ("hh100:2", "did you mean 'h100'"),
        ("cpu:1++cpu:1", "'' is not CARD:COUNT"),
    ],
)
def test_impossible_ranks_are_refused_by_what_is_wrong(text: str, words: str) -> None:
    with pytest.raises(PlanError, match=words):
        parse_topology(text)


def test_a_gpu_has_its_data_sheets_figures_and_keeps_a_reserve() -> None:
    (device, _) = parse_topology("h200:2").devices
    assert device.kind == "cuda"
    assert device.memory_bytes == round(141e9 * 0.85)
    assert device.memory_bandwidth == DEVICE_MODELS["h200"].memory_bandwidth == 4800e9


def test_the_machine_at_hand_is_a_topology() -> None:
    topology = parse_topology("local")
    assert topology.name == "local" and topology.devices


def test_a_file_gives_every_figure(tmp_path: Path) -> None:
    path = tmp_path / "two-hosts.toml"
    gpus = '[[devices]]\ncard = "h100"\ncount = 2\nmemory = "70GB"\n'
    host = '[[devices]]\ncard = "cpu"\nhost = 1\nmemory_bandwidth = 5e9\n'
    path.write_text(f"network_bandwidth = 25e9\n{gpus}{host}")
    topology = parse_topology(str(path))
    assert topology.name == "two-hosts" and topology.network_bandwidth == 25e9
    gpu, twin, cpu = topology.devices
    assert gpu == twin and gpu.memory_bytes == 70 * 10**9 and gpu.host == 0
    assert (cpu.kind, cpu.host, cpu.memory_bandwidth, cpu.memory_bytes) == ("cpu", 1, 5e9, None)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x", "not TOML"),
        ("name = 'a'", r"expected \[\[devices\]\], at least one"),
        ("[[devices]]\ncard = 'moon'", "devices 1: unknown device 'moon'"),
        ("[[devices]]\ncount = 0", "devices 1: count 0, expected 1 to 4096"),
        ("[[devices]]\nmemory = 'much'", "devices 1: memory: 'much', expected a size such as"),
        ("[[devices]]\nspeed = 1", "devices 1: speed: Unexpected"),
        ("[[devices]]\nmemory_bandwidth = -1", "memory_bandwidth: .* greater than 0, got -1"),
        ("speed = 1\n[[devices]]", "speed: Unexpected"),
        ("disk = 3\n[[devices]]", "disk: expected a table of fields, got 3"),
        (
            "[disk]\nreads_per_second = 0\nread_seconds = 1e-4\n[[devices]]",
            "disk.reads_per_second: .* greater than 0, got 0",
        ),
        ("[disk]\nreads_per_second = 9e4\n[[devices]]", "disk.read_seconds: Field required"),
    ],
)
def test_a_wrong_file_is_refused_by_its_field(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "topology.toml"
    path.write_text(text)
    with pytest.raises(PlanError, match=words):
        parse_topology(str(path))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"none\.toml: cannot be read"):
        parse_topology(str(tmp_path / "none.toml"))
