"""What NVIDIA's clients ask of a server beside scores."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.conformance.clients import Client, ConformingServer, infer, make_client, refused
from tests.support.servers import MODEL, Ranker, good_inputs, running_server

BATCH_PHASES = ("compute_input", "compute_infer", "compute_output")


def test_the_server_is_live_and_ready_and_says_what_it_can(client: Client) -> None:
    assert client.call("is_server_live") and client.call("is_server_ready")
    assert client.call("is_model_ready", MODEL) and client.call("is_model_ready", MODEL, "1")
    metadata = client.describe("get_server_metadata")
    assert metadata["name"] == "sharded-infer"
    assert set(metadata["extensions"]) >= {
        "logging", "model_configuration", "model_repository", "statistics", "system_shared_memory",
    }  # fmt: skip


def test_metadata_and_configuration_name_the_same_tensors(client: Client) -> None:
    metadata = client.describe("get_model_metadata", MODEL)
    config = client.describe("get_model_config", MODEL)
    config = config.get("config", config)
    assert metadata["versions"] == ["1"] and int(config["max_batch_size"]) > 0
    assert [tensor["name"] for tensor in metadata["inputs"]] == [i["name"] for i in config["input"]]
    outputs = {tensor["name"]: tensor["shape"] for tensor in metadata["outputs"]}
    assert {name: list(map(int, shape)) for name, shape in outputs.items()} == {
        "score": [-1],
        "labels": [-1, 3],
    }


def test_the_index_has_the_version_as_ready(client: Client) -> None:
    [entry] = client.describe("get_model_repository_index")["models"]
    assert (entry["name"], entry["version"], entry["state"]) == (MODEL, "1", "READY")


@pytest.mark.parametrize(("model", "version"), [("nobody", ""), (MODEL, "99"), (MODEL, "stable")])
def test_what_is_not_there_is_found_by_no_call(client: Client, model: str, version: str) -> None:
    calls = ("get_model_metadata", "get_model_config", "get_inference_statistics", "is_model_ready")
    for method in calls:
        if method == "is_model_ready" and not client.explains:
            assert not client.call(method, model, version)
            continue
        refused("NOT_FOUND", "", client, partial(client.call, method, model, version))
    asking = partial(infer, client, model, good_inputs(1), model_version=version)
    refused("NOT_FOUND", "", client, asking)


def _page(server: ConformingServer) -> dict[str, float]:
    totals: dict[str, float] = {}
    for family in text_string_to_metric_families(server.page()):
        for name, labels, value, *_ in family.samples:
            if labels.get("model") == MODEL and labels.get("code", "OK") == "OK":
                totals[name] = totals.get(name, 0) + value
    return totals


def _statistics(client: Client) -> Any:
    [entry] = client.describe("get_inference_statistics", MODEL)["model_stats"]
    return entry


def _batches(statistics: Any) -> int:
    entries = statistics.get("batch_stats", [])
    for entry in entries:
        counts = {int(entry[name]["count"]) for name in BATCH_PHASES}
        assert int(entry["batch_size"]) > 0 and len(counts) == 1
    return sum(int(entry["compute_infer"]["count"]) for entry in entries)


def test_statistics_and_metrics_count_the_same(client: Client, server: ConformingServer) -> None:
    sizes = (1, 5, 9)
    infer(client, MODEL, good_inputs(1))
    before, page = _statistics(client), _page(server)
    for size in sizes:
        infer(client, MODEL, good_inputs(size))
    if client.streams:
        inputs = [client.input(name, array) for name, array in good_inputs(4).items()]
        client.stream([{"model_name": MODEL, "inputs": inputs}] * 3)
    streamed = 3 if client.streams else 0
    after, later = _statistics(client), _page(server)
    scored = int(after["inference_count"]) - int(before["inference_count"])
    assert scored == sum(sizes) + 4 * streamed
    assert later["sharded_infer_samples_total"] - page["sharded_infer_samples_total"] == scored
    old, new = before["inference_stats"], after["inference_stats"]
    answered = int(new["success"]["count"]) - int(old["success"]["count"])
    assert answered == len(sizes) + streamed
    assert later["sharded_infer_requests_total"] - page["sharded_infer_requests_total"] == answered
    executed = int(after["execution_count"]) - int(before["execution_count"])
    assert _batches(after) - _batches(before) == executed
    phases = ("queue", *BATCH_PHASES)
    for phase in phases:
        assert int(new[phase]["count"]) - int(old[phase]["count"]) == answered
    spent = sum(int(new[phase]["ns"]) for phase in phases)
    seconds = later["sharded_infer_request_seconds_sum"]
    assert int(new["success"]["ns"]) == pytest.approx(spent, rel=1e-6)
    assert int(new["success"]["ns"]) == pytest.approx(seconds * 1e9, rel=1e-6)


def test_log_settings_can_be_read_and_changed(client: Client) -> None:
    every = {"log_info": True, "log_warnings": True, "log_errors": True, "log_verbose_level": 0}
    changed = client.describe("update_log_settings", {"log_info": False, "log_verbose_level": 2})
    assert _values(changed) == {
        **every, "log_info": False, "log_verbose_level": 2, "log_file": "", "log_format": "default",
    }  # fmt: skip
    assert _values(client.describe("get_log_settings")) == _values(changed)
    client.call("update_log_settings", every)
    assert _values(client.describe("get_log_settings"))["log_info"] is True
    for settings, code in (
        ({"log_file": "here"}, "UNIMPLEMENTED"),
        ({"log_info": 1, "unknown": True}, "INVALID_ARGUMENT"),
    ):
        refused(code, "", client, partial(client.call, "update_log_settings", settings))


def _values(response: Any) -> dict[str, Any]:
    settings = response.get("settings", response)
    return {
        name: next(iter(value.values())) if isinstance(value, dict) else value
        for name, value in settings.items()
    }


def test_a_log_setting_holds_in_every_worker(ranker: Ranker, tmp_path: Path) -> None:
    log = tmp_path / "log"
    with running_server(ranker.repository, log, "--workers", 2) as server:
        client = make_client("grpc", server)
        client.call("update_log_settings", {"log_info": False})
        client.close()
    text = log.read_text()
    assert "no longer ready" not in text and "draining" not in text


def test_requests_are_not_traced(client: Client) -> None:
    settings = client.describe("get_trace_settings")["settings"]
    assert settings["trace_level"]["value"] == ["OFF"]
    assert client.describe("get_trace_settings", model_name=MODEL)["settings"] == settings
    client.call("update_trace_settings", settings={"trace_level": ["OFF"], "trace_rate": None})
    for named, code in (
        ({"settings": {"trace_level": ["TIMESTAMPS"]}}, "UNIMPLEMENTED"),
        ({"settings": {"unknown": "1"}}, "INVALID_ARGUMENT"),
        ({"model_name": "nobody"}, "NOT_FOUND"),
    ):
        refused(code, "", client, partial(client.call, "update_trace_settings", **named))
