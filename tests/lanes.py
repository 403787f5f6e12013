"""The lanes of the tests.

make test       what no list names, at every commit
make test-rest  marker `rest`: servers and processes of their own
make test-slow  marker `slow`: minutes; continuous integration runs a third at each commit
make soak       marker `soak`: the long forms, with SHARDED_INFER_SOAK=1; the short ones are slow
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from zlib import crc32

import pytest

# Tests that have a long form.
SOAK_FILES = (
    "tests/attacks/test_campaign.py",
    "tests/attacks/test_parser_sanitizers.py",
    "tests/end_to_end/test_releases.py",
    "tests/end_to_end/test_sigterm.py",
    "tests/serving/http_api/test_openapi.py",
    "tests/soak/test_crashes.py",
    "tests/soak/test_deltas.py",
    "tests/soak/test_killed_processes.py",
)

# What starts servers or processes of its own.
REST_FILES = (
    "tests/attacks/test_bodies.py",
    "tests/attacks/test_grpc.py",
    "tests/attacks/test_http_connections.py",
    "tests/attacks/test_logs.py",
    "tests/attacks/test_reading_time.py",
    "tests/attacks/test_shared_memory.py",
    "tests/attacks/test_streams.py",
    "tests/attacks/test_stuck_workers.py",
    "tests/attacks/test_tls.py",
    "tests/attacks/test_unloadable_models.py",
    "tests/conformance/test_grpcio_clients.py",
    "tests/conformance/test_http2_peer.py",
    "tests/conformance/test_http2_tools.py",
    "tests/conformance/test_listening.py",
    "tests/conformance/test_model_control.py",
    "tests/docker/test_kubernetes.py",
    "tests/docker/test_prometheus_rules.py",
    "tests/end_to_end/test_all_features.py",
    "tests/end_to_end/test_cut_network.py",
    "tests/end_to_end/test_delta_swaps.py",
    "tests/end_to_end/test_devices.py",
    "tests/end_to_end/test_fronts.py",
    "tests/end_to_end/test_full_disk.py",
    "tests/end_to_end/test_keepalive.py",
    "tests/end_to_end/test_leases.py",
    "tests/end_to_end/test_live_hosts.py",
    "tests/end_to_end/test_log_lines.py",
    "tests/end_to_end/test_probes.py",
    "tests/end_to_end/test_promotion.py",
    "tests/end_to_end/test_publish_parts.py",
    "tests/end_to_end/test_replicas.py",
    "tests/end_to_end/test_repo_watch.py",
    "tests/end_to_end/test_rest.py",
    "tests/end_to_end/test_rolling_cluster.py",
    "tests/end_to_end/test_row_faults.py",
    "tests/end_to_end/test_row_memory.py",
    "tests/end_to_end/test_security.py",
    "tests/end_to_end/test_sequence_commands.py",
    "tests/end_to_end/test_server.py",
    "tests/end_to_end/test_shadow.py",
    "tests/end_to_end/test_shard_hosts.py",
    "tests/end_to_end/test_shared_copies.py",
    "tests/end_to_end/test_shared_features.py",
    "tests/end_to_end/test_shares.py",
    "tests/end_to_end/test_signatures.py",
    "tests/end_to_end/test_strings.py",
    "tests/end_to_end/test_traced_lookups.py",
    "tests/end_to_end/test_tracing.py",
    "tests/end_to_end/test_unix_sockets.py",
    "tests/end_to_end/test_workers.py",
    "tests/quant/sources/test_distributed_checkpoint.py",
    "tests/serving/cluster/test_managed_process.py",
    "tests/serving/commands/models/test_publish_changes.py",
    "tests/serving/commands/models/test_quantize.py",
    "tests/serving/commands/test_doctor.py",
    "tests/serving/commands/test_lazy_group.py",
    "tests/serving/metrics/test_version_info.py",
    "tests/serving/remote/promotion/test_promoter.py",
    "tests/serving/remote/test_caller.py",
    "tests/serving/remote_lookups/test_measured_hosts.py",
    "tests/serving/scheduler/test_native_threads.py",
    "tests/serving/transport/test_http2_client_failures.py",
    "tests/serving/transport/test_late_calls.py",
    "tests/sharded_infer/artifacts/test_shared_pages.py",
    "tests/sharded_infer/engines/test_instruction_sets.py",
    "tests/sharded_infer/lookups/held/test_row_memory.py",
    "tests/sharded_infer/repositories/test_crashes.py",
    "tests/sharded_infer/towers/split/test_user_split.py",
    "tests/sharded_infer/towers/test_sequences.py",
    "tests/sharded_infer/towers/test_tower_kernels.py",
    "tests/support/test_forked_command.py",
)

# What drives a browser or Ray, trains, compiles, measures, or builds wheels and images.
SLOW_FILES = (
    "tests/aarch64/test_aarch64.py",
    "tests/attacks/test_operator_arguments.py",
    "tests/attacks/test_transport_sanitizers.py",
    "tests/benchmarks/cluster/test_cluster.py",
    "tests/benchmarks/parts/test_decode.py",
    "tests/benchmarks/parts/test_ids.py",
    "tests/benchmarks/parts/test_quantize.py",
    "tests/benchmarks/parts/test_ranking.py",
    "tests/benchmarks/peers/test_peers.py",
    "tests/benchmarks/plan/test_plan.py",
    "tests/benchmarks/releases/test_releases.py",
    "tests/benchmarks/sequences/test_sequences.py",
    "tests/benchmarks/servers/test_executors.py",
    "tests/benchmarks/servers/test_metrics.py",
    "tests/benchmarks/tiers/test_tiers.py",
    "tests/compatibility/test_served.py",
    "tests/docker/test_dashboards.py",
    "tests/docker/test_image.py",
    "tests/docker/test_metrics_end_to_end.py",
    "tests/docs/test_site.py",
    "tests/end_to_end/test_demo.py",
    "tests/end_to_end/test_demo_on_processors.py",
    "tests/end_to_end/test_installed_wheel.py",
    "tests/end_to_end/test_live_page.py",
    "tests/end_to_end/test_ray_cluster.py",
    "tests/end_to_end/test_ray_publish.py",
    "tests/end_to_end/test_sequence_demo.py",
    "tests/end_to_end/test_server_memory.py",
    "tests/end_to_end/test_torchrec_models.py",
    "tests/end_to_end/test_trained_models.py",
    "tests/gpu_check/test_gpu_check.py",
    "tests/kernels/gpu/test_triton_compiled.py",
    "tests/kernels/gpu/test_triton_interpreted.py",
    "tests/release/test_release.py",
    "tests/serving/bench/load/test_generator.py",
    "tests/serving/bench/load/test_http_generator.py",
    "tests/serving/bench/parts/test_device_scenarios.py",
    "tests/serving/commands/bench/test_bench_engine.py",
    "tests/serving/commands/bench/test_bench_lookup.py",
    "tests/serving/commands/bench/test_bench_serve.py",
    "tests/serving/demo/sequences/test_model.py",
    "tests/serving/demo/test_model.py",
    "tests/serving/demo/test_raw_ids.py",
    "tests/serving/host/test_installation.py",
    "tests/serving/host/test_malloc.py",
    "tests/sharded_infer/engines/test_torchrec_bit_equality.py",
    "tests/sharded_infer/reports/plan/test_page.py",
    "tests/sharded_infer/reports/quantization/test_page.py",
    "tests/sharded_infer/test_address_space.py",
    "tests/sharded_infer/zoo/test_published_sequence_towers.py",
    "tests/test_wheel.py",
)

# Single tests that take seconds, in files that are fast otherwise.
REST_TESTS: Mapping[str, tuple[str, ...]] = {
    "tests/attacks/test_hostile_files.py": (
        "test_a_running_server_follows_other_models_while_ones_labels_are_a_fifo",
        "test_commands_name_fifos_and_do_not_wait",
        "test_other_models_get_new_versions_while_ones_manifest_is_locked",
    ),
    "tests/attacks/test_options.py": ("test_no_text_ends_a_command_with_a_traceback",),
    "tests/conformance/test_description.py": ("test_a_log_setting_holds_in_every_worker",),
    "tests/end_to_end/test_predictor.py": ("test_retries_bridge_the_death_of_a_worker",),
    "tests/kernels/test_mapped_file.py": ("test_faults_of_others_end_as_they_did",),
    "tests/serving/config/test_setting_sources.py": (
        "test_the_command_takes_an_old_option_and_hides_it",
    ),
    "tests/serving/metrics/test_server_metrics.py": (
        "test_a_worker_killed_while_it_counts_leaves_at_most_one_request_in_part",
        "test_workers_share_a_page_and_a_killed_ones_successor_counts_on",
    ),
    "tests/serving/protocol/readers/test_native_reader.py": (
        "test_every_form_is_read_as_the_portable_path_reads_it",
    ),
    "tests/serving/protocol/test_predict_message.py": (
        "test_every_form_is_read_as_the_protocols_form_is",
    ),
    "tests/serving/test_cli.py": (
        "test_commands_are_processes_that_read_stdin_and_end_with_their_exit_code",
    ),
    "tests/sharded_infer/artifacts/test_table_memory.py": ("test_a_copys_memory_comes_back",),
    "tests/sharded_infer/importing/changes/test_tracked_changes.py": (
        "test_ranks_have_each_their_own_rows_and_no_columns",
    ),
    "tests/sharded_infer/planning/test_planner.py": (
        "test_more_devices_of_any_kind_never_make_it_slower",
        "test_the_order_of_devices_does_not_change_the_cost",
    ),
    "tests/sharded_infer/publishing/test_quantization.py": (
        "test_an_interrupted_run_leaves_no_folder_and_can_be_started_again",
    ),
    "tests/sharded_infer/towers/lowering/test_int8.py": (
        "test_an_int8_product_runs_without_torchs_compiler",
    ),
    "tests/sharded_infer/towers/program/test_operators.py": (
        "test_a_recurrent_tower_keeps_its_scores_and_holds_each_weight_once",
        "test_a_snippet_scores_as_its_module_does_once_stored_and_read_back",
    ),
    "tests/sharded_infer/towers/program/test_size_limit.py": (
        "test_usual_operators_run_without_torchs_compiler_which_can_be_imported_later",
    ),
}

SLOW_TESTS: Mapping[str, tuple[str, ...]] = {
    "tests/docs/test_blocks.py": ("test_a_page_runs_from_its_first_block_to_its_last",),
    "tests/sharded_infer/importing/id_maps/test_torchrec_maps.py": (
        "test_rows_are_those_of_mch_modules",
        "test_rows_are_those_of_mpzch_modules",
    ),
    "tests/test_docs.py": ("test_the_notebook_is_typed_as_strictly_as_its_user_wants",),
}

# What is slow for every test that asks for it: an object store is a process of its own.
REST_FIXTURES = frozenset({"s3_process"})

# Of tests that hold for several servers, clients, stores and sets of towers, one kind is fast.
REST_VALUES: Mapping[str, frozenset[str]] = {
    "client": frozenset({"aio"}),
    "controlled": frozenset({"protected"}),
    "kind": frozenset({"aio"}),
    "loader": frozenset({"aio"}),
    "location": frozenset({"s3"}),
    "server": frozenset({"protected"}),
    "to": frozenset({"s3"}),
    "towers": frozenset({"all"}),
}

# Products of parameters: fast are as many cases as have each pair of two parameters' values.
PAIRWISE_FILES = (
    "tests/kernels/sequences/test_passes.py",
    "tests/kernels/test_dense_step.py",
    "tests/kernels/test_pooled_lookup.py",
    "tests/kernels/test_product.py",
    "tests/kernels/test_row_overlay.py",
    "tests/kernels/tiers/test_row_tier.py",
    "tests/quant/test_native_encoder.py",
    "tests/sharded_infer/engines/device/test_tower_engine.py",
    "tests/sharded_infer/engines/test_model_share.py",
    "tests/sharded_infer/engines/test_padding.py",
    "tests/sharded_infer/lookups/test_plan_lookups.py",
    "tests/sharded_infer/lookups/test_random_plans.py",
    "tests/sharded_infer/towers/split/test_splitting.py",
)

# The files that take longest, up to minutes: workers begin with them, and none has one left when
# the others are done. All others come at random.
LONGEST_FILES = (
    "tests/docs/test_blocks.py",
    "tests/docs/test_site.py",
    "tests/docker/test_image.py",
    "tests/end_to_end/test_demo_on_processors.py",
    "tests/kernels/gpu/test_triton_interpreted.py",
    "tests/end_to_end/test_ray_cluster.py",
    "tests/serving/commands/bench/test_bench_serve.py",
    "tests/benchmarks/tiers/test_tiers.py",
    "tests/attacks/test_stuck_workers.py",
    "tests/end_to_end/test_ray_publish.py",
    "tests/benchmarks/peers/test_peers.py",
    "tests/end_to_end/test_unix_sockets.py",
    "tests/end_to_end/test_workers.py",
    "tests/sharded_infer/engines/test_instruction_sets.py",
    "tests/end_to_end/test_live_page.py",
    "tests/end_to_end/test_releases.py",
    "tests/end_to_end/test_security.py",
    "tests/end_to_end/test_tracing.py",
    "tests/gpu_check/test_gpu_check.py",
    "tests/end_to_end/test_rolling_cluster.py",
    "tests/soak/test_killed_processes.py",
    # Of the fast lane.
    "tests/sharded_infer/towers/test_tower.py",
    "tests/sharded_infer/towers/lowering/joined/test_joined_passes.py",
    "tests/sharded_infer/publishing/test_publication.py",
    "tests/sharded_infer/publishing/test_sequence_lengths.py",
)

THIRDS = 3

# Processor time that a fast test may take in its own process. Tests take half of it at most where
# they are written: on slow or busy processors the same test takes up to twice as long.
FAST_PROCESSOR_SECONDS = 20
# Time after which a fast test hangs; others have pytest's 300 s. Setups are not counted: one test
# waits for what many share, and `running_server` and `run` have limits of their own.
FAST_SECONDS = 180


def assign_lanes(items: Iterable[pytest.Item], root: Path) -> None:
    """Marks each test with its lane."""
    pairwise: dict[str, list[pytest.Item]] = {}
    for item in items:
        path = item.path.relative_to(root).as_posix()
        function = getattr(item, "originalname", item.name)
        if path in SOAK_FILES:
            item.add_marker(pytest.mark.soak)
        if path in SLOW_FILES or path in SOAK_FILES or function in SLOW_TESTS.get(path, ()):
            item.add_marker(pytest.mark.slow)
            continue
        if (
            path in REST_FILES
            or function in REST_TESTS.get(path, ())
            or REST_FIXTURES & set(getattr(item, "fixturenames", ()))
            or _is_variant(item)
        ):
            item.add_marker(pytest.mark.rest)
            continue
        item.add_marker(pytest.mark.timeout(FAST_SECONDS, func_only=True))
        if path in PAIRWISE_FILES:
            pairwise.setdefault(f"{path}::{function}", []).append(item)
    for cases in pairwise.values():
        chosen = all_pairs({item.name: _values(item) for item in cases})
        for item in cases:
            if item.name not in chosen:
                item.add_marker(pytest.mark.slow)


def is_fast(item: pytest.Item) -> bool:
    """Whether a test is in the lane of every commit."""
    return item.get_closest_marker("rest") is None and item.get_closest_marker("slow") is None


def third_of(path: str) -> int:
    """The third, 0 to 2, of the slow lane that a file's tests are in: long files are spread."""
    if path in LONGEST_FILES:
        return LONGEST_FILES.index(path) % THIRDS
    return crc32(path.encode()) % THIRDS


def check_processor_time(item: pytest.Item, seconds: float) -> None:
    """Fails a fast test that took too long; a server that it asks is not counted."""
    if seconds > FAST_PROCESSOR_SECONDS and is_fast(item):
        pytest.fail(
            f"took {seconds:.1f} s of processor time, expected at most {FAST_PROCESSOR_SECONDS} s "
            "of a fast test; tests/lanes.py has other lanes"
        )


def all_pairs(cases: Mapping[str, Sequence[str]]) -> set[str]:
    """Chooses cases until each pair of two parameters' values that occurs has been chosen.

    Greedy: the case with most new pairs is next, of equals the one whose name is first. With fewer
    than two parameters nothing is left out.
    """
    pairs = {name: _pairs(cases[name]) for name in sorted(cases)}
    if not any(pairs.values()):
        return set(pairs)
    chosen: set[str] = set()
    missing = set().union(*pairs.values())
    while missing:
        best = max(pairs, key=lambda name: len(pairs[name] & missing))
        chosen.add(best)
        missing -= pairs[best]
    return chosen


def _pairs(values: Sequence[str]) -> set[Hashable]:
    return set(combinations(enumerate(values), 2))


def _values(item: pytest.Item) -> list[str]:
    """Each parameter's value, by the parameters' names; a list has no hash, but a text."""
    callspec = getattr(item, "callspec", None)
    return [repr(value) for _, value in sorted(callspec.params.items())] if callspec else []


def _is_variant(item: pytest.Item) -> bool:
    callspec = getattr(item, "callspec", None)
    return callspec is not None and any(
        isinstance(value, str) and value in REST_VALUES.get(name, ())
        for name, value in callspec.params.items()
    )
