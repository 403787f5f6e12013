"""Releases and their quality: versions, loads, scores, ids, the cost table."""

from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import units
from grafana_foundation_sdk.models.dashboard import Panel

from dashboards.frame import filled, framed
from dashboards.panels import Query, Text, dashed, graph, heatmap, stat
from dashboards.selectors import of_model, of_server, of_version, quantile, rate

_DAY_SECONDS = 86_400.0


def releases_dashboard() -> Dashboard:
    """Served versions, their releases, and changes of behaviour."""
    dashboard = framed(
        "sharded-infer-releases",
        "sharded-infer: releases and model quality",
        "What is served where, did the last release work, and does the model behave as before?",
    )
    rows = {
        "At a glance": _at_a_glance(),
        "Versions": _versions(),
        "Loads": _loads(),
        "Model quality": _quality(),
        "Shadow": _shadow(),
    }
    return filled(dashboard, rows)


def _at_a_glance() -> list[Builder[Panel]]:
    loads = of_model("sharded_infer_version_loads_total")
    failures = of_model("sharded_infer_version_load_failures_total")
    read = of_model("sharded_infer_repository_read_timestamp_seconds")
    return [
        stat(
            Text(
                "Served version",
                "The version for requests that name none. If it is not the one you published, "
                "see Load failures and `sharded-infer repo watch`.",
            ),
            Query(f"max by (model) ({of_model('sharded_infer_served_version')})", "{{model}}"),
            unit=units.Number,
            decimals=0,
        ),
        stat(
            Text(
                "Published",
                "Age of the served version. If it is older than your training's rhythm, the "
                "pipeline or the repository watcher has stopped.",
            ),
            Query(f"max by (model) ({of_model('sharded_infer_served_age_seconds')})", "{{model}}"),
            unit=units.Seconds,
            warn=2 * _DAY_SECONDS,
            bad=7 * _DAY_SECONDS,
        ),
        stat(
            Text(
                "Versions in service at once",
                "Number of different default versions of workers and replicas. If it stays "
                "above one after a release, a replica could not load the new version.",
            ),
            Query(
                'count by (model) (count_values by (model) ("version", '
                f"{of_model('sharded_infer_served_version')} > 0))",
                "{{model}}",
            ),
            unit=units.Short,
            warn=2,
            bad=3,
            decimals=0,
        ),
        stat(
            Text(
                "Loads in the last day",
                "Versions that every worker loaded, by replica. If there are fewer than "
                "expected, check that the version is published and that labels point at it.",
            ),
            Query(f"max by (model) (increase({loads}[1d]))", "{{model}}"),
            unit=units.Short,
            decimals=0,
        ),
        stat(
            Text(
                "Failed loads in the last day",
                "Versions that were refused, while the old one serves on. The phase is below; "
                "the reason is in the log and in RepositoryIndex.",
            ),
            Query(f"sum by (model) (increase({failures}[1d]))", "{{model}}"),
            unit=units.Short,
            warn=0.5,
            bad=3,
            decimals=0,
        ),
        stat(
            Text(
                "Repository read",
                "Time since versions and labels were last read. If it exceeds minutes, the "
                "repository does not answer, or --poll-seconds is 0.",
            ),
            Query(f"max by (model) (time() - {read})", "{{model}}"),
            unit=units.Seconds,
            warn=60,
            bad=600,
        ),
    ]


def _versions() -> list[Builder[Panel]]:
    served = of_model("sharded_infer_served_version")
    created = of_version("sharded_infer_version_created_timestamp_seconds")
    requests = rate(of_version("sharded_infer_requests_total"))
    share = of_version("sharded_infer_version_share")
    loaded = of_version("sharded_infer_model_loaded")
    missing = of_model("sharded_infer_model_missing")
    labels = of_model("sharded_infer_label_version")
    build = of_server("sharded_infer_build_info")
    precision = of_version("sharded_infer_tower_precision_info")
    return [
        graph(
            Text(
                "Served version, by worker",
                "All lines of a model should step up together. A line that stays behind is a "
                "worker that still loads, or a replica that could not load.",
            ),
            Query(served, "{{model}} {{instance}} worker {{worker}}"),
            unit=units.Number,
            steps=True,
        ),
        graph(
            Text(
                "Requests, by version",
                "How traffic moves between versions. Traffic on an old version long after a "
                "release comes from clients that name it by number.",
            ),
            Query(f"sum by (model, version) ({requests})", "{{model}} {{version}}"),
            unit=units.RequestsPerSecond,
            stacked=True,
        ),
        graph(
            Text(
                "Share of the requests, by version",
                "What the weights of labels say, and what versions get. They differ where clients "
                "name versions, or where a few routing keys have many requests.",
            ),
            Query(f"max by (model, version) ({share}) > 0", "{{model}} {{version}} configured"),
            Query(
                f"sum by (model, version) ({requests}) / on (model) group_left "
                f"sum by (model) ({requests}) > 0",
                "{{model}} {{version}} actual",
            ),
            unit=units.PercentUnit,
            most=1.0,
        ),
        graph(
            Text(
                "Labels",
                "The version that each label means. If one moves without a release, see its "
                "history with `sharded-infer repo show`.",
            ),
            Query(f"max by (model, label) ({labels})", "{{model}} {{label}}"),
            unit=units.Number,
            width=12,
            steps=True,
        ),
        graph(
            Text(
                "Age of loaded versions",
                "Time since each version was published. A line that rises without another "
                "below it means that no new version arrives.",
            ),
            Query(f"max by (model, version) (time() - {created})", "{{model}} {{version}}"),
            unit=units.Seconds,
            width=12,
        ),
        graph(
            Text(
                "Loaded and missing, on how many replicas",
                "A version that stays on fewer replicas than the others was refused by the "
                "rest. Missing models have no version that can be served; the log and "
                "RepositoryIndex say why.",
            ),
            Query(f"sum by (model, version) ({loaded})", "{{model}} {{version}}"),
            Query(f"sum by (model) ({missing})", "{{model}} missing"),
            unit=units.Short,
            width=12,
            steps=True,
        ),
        graph(
            Text(
                "Builds",
                "Replicas by build. If two builds remain for long, a rollout of the server has "
                "stopped halfway.",
            ),
            Query(f"count by (build, torch) ({build})", "{{build}} torch {{torch}}"),
            unit=units.Short,
            width=12,
            steps=True,
        ),
        graph(
            Text(
                "Precision of towers, on how many replicas",
                "The precision that was published, and the one that runs. Where they differ, the "
                "processor has no products of the published one, and the log says which precision "
                "would be faster (docs/model-toml.md, Precision on the machine that serves).",
            ),
            Query(
                f"sum by (model, version, published, running) ({precision})",
                "{{model}} {{version}} {{published}} in {{running}}",
            ),
            unit=units.Short,
            width=24,
            steps=True,
        ),
    ]


def _loads() -> list[Builder[Panel]]:
    failures = of_model("sharded_infer_version_load_failures_total")
    loads = of_model("sharded_infer_version_loads_total")
    seconds = of_model("sharded_infer_version_load_seconds")
    return [
        graph(
            Text(
                "Loads",
                "Versions that every worker of a replica loaded. Several for one release mean "
                "that it is published repeatedly.",
            ),
            Query(f"sum by (model) (increase({loads}[$__rate_interval]))", "{{model}}"),
            unit=units.Short,
            steps=True,
        ),
        graph(
            Text(
                "Load failures, by phase",
                "fetch: the store failed. verify: files were altered, publish again. memory: "
                "there is no room beside the old version. golden: scores differ from the "
                "published ones. serve: a file was truncated while served. open, warm_up, "
                "workers: see the log.",
            ),
            Query(
                f"sum by (model, phase) (increase({failures}[$__rate_interval]))",
                "{{model}} {{phase}}",
            ),
            unit=units.Short,
            steps=True,
        ),
        graph(
            Text(
                "Time of the last load, by phase",
                "Phases of a load in the slowest replica, which limit the speed of a release. "
                "fetch grows with the artifact and the store, warm_up with the tower.",
            ),
            Query(f"max by (phase) ({seconds})", "{{phase}}"),
            unit=units.Seconds,
            stacked=True,
            steps=True,
        ),
    ]


def _quality() -> list[Builder[Panel]]:
    scores = "sharded_infer_scores"
    # Not the mean: a histogram that has negative boundaries has no sum.
    median = (
        "histogram_quantile(0.5, sum by (model, version, output, le) "
        f"({rate(of_version(scores + '_bucket'))}))"
    )
    outside = rate(of_version("sharded_infer_ids_out_of_range_total"))
    unknown = rate(of_version("sharded_infer_ids_unknown_total"))
    mapped = rate(of_version("sharded_infer_ids_mapped_total"))
    empty = rate(of_version("sharded_infer_empty_bags_total"))
    samples = rate(of_version("sharded_infer_samples_total"))
    ratio = "sharded_infer_cost_ratio"
    busy = rate(of_version("sharded_infer_busy_seconds_total"))
    predicted = rate(of_version("sharded_infer_cost_predicted_seconds_total"))
    one = Query("vector(1)", "as predicted")
    return [
        heatmap(
            Text(
                "Scores",
                "Distribution of the scores of sampled responses, over all outputs. A release "
                "should not change it. A jump at a version marker means that the model or a "
                "feature changed: roll back (docs/runbook.md, Rolling back) and investigate.",
            ),
            f"sum by (le) (increase({of_version(scores + '_bucket')}[$__rate_interval]))",
            unit=units.Short,
        ),
        graph(
            Text(
                "Median score, by version and output",
                "Versions of a model that serve at once should agree. A slow drift is a change "
                "of the traffic; a jump is not.",
            ),
            Query(median, "{{model}} {{version}} {{output}}"),
            unit=units.Short,
            width=12,
        ),
        graph(
            Text(
                "Ids out of range, a sample",
                "Ids that were ignored or wrapped because they are outside their table. After "
                "a rise, compare with the version markers: a client's vocabulary differs from "
                "the version's.",
            ),
            Query(
                f"sum by (model, version) ({outside}) / sum by (model, version) ({samples})",
                "{{model}} {{version}}",
            ),
            unit=units.Short,
            width=8,
        ),
        graph(
            Text(
                "Unknown ids, by table",
                "Share of the raw ids that a table's id map does not know, for the ten highest "
                "tables. A jump at a version marker means that the version lacks ids; without one, "
                "that a client's ids or string hashes have changed (docs/raw-ids.md).",
            ),
            Query(
                f"topk(10, sum by (model, table) ({unknown}) / sum by (model, table) ({mapped}))",
                "{{model}} {{table}}",
            ),
            unit=units.PercentUnit,
            width=8,
            most=1.0,
        ),
        graph(
            Text(
                "Empty bags, by feature",
                "Share of the samples without ids of a feature, for the ten highest features. "
                "At 100% a client does not send the feature and is scored without it; "
                "`required` in model.toml refuses such requests (docs/model-toml.md). A jump "
                "means that the feature's source has failed.",
            ),
            Query(
                f"topk(10, sum by (model, feature) ({empty}) / on (model) group_left "
                f"sum by (model) ({samples}))",
                "{{model}} {{feature}}",
            ),
            unit=units.PercentUnit,
            width=8,
            most=1.0,
        ),
        heatmap(
            Text(
                "Cost table: measured over predicted",
                "Time of each batch over the cost table's estimate. Cells near 1 should be the "
                "darkest. Otherwise batching and deadlines are decided on wrong estimates, "
                "usually because of other work on the machine.",
            ),
            f"sum by (le) (increase({of_version(ratio + '_bucket')}[$__rate_interval]))",
            unit=units.Short,
            width=12,
        ),
        dashed(
            graph(
                Text(
                    "Measured over predicted, by version",
                    "Measured over estimated time of all batches. Above 1 after a release, the "
                    "new version was measured on a quiet machine; the cost table adapts within "
                    "minutes.",
                ),
                Query(
                    f"sum by (model, version) ({busy}) / sum by (model, version) ({predicted})",
                    "{{model}} {{version}}",
                ),
                one,
                unit=units.Short,
                width=12,
            ),
            one.legend,
        ),
    ]


def _shadow() -> list[Builder[Panel]]:
    shadowing = of_version("sharded_infer_shadowing")
    requests = rate(of_version("sharded_infer_shadow_requests_total"))
    dropped = rate(of_version("sharded_infer_shadow_dropped_requests_total"))
    difference = "sharded_infer_shadow_score_difference"
    differences = rate(of_version(difference + "_sum"))
    compared = rate(of_version(difference + "_bucket", 'le="+Inf"'))
    largest = of_version("sharded_infer_shadow_largest_score_difference")
    scores = rate(of_version("sharded_infer_shadow_scores_bucket"))
    default = rate(of_version("sharded_infer_shadow_default_scores_bucket"))
    whole = rate(of_version("sharded_infer_shadow_scores_bucket", 'le="+Inf"'))
    buckets = "sum by (model, version, output, le)"
    outputs = "sum by (model, version, output)"
    return [
        graph(
            Text(
                "Scored by the shadow",
                "Requests of the default version that the shadow has scored too (`--shadow`), by "
                "status code. Codes other than OK are requests that it would have failed. Nothing "
                "here reaches a client.",
            ),
            Query(f"sum by (model, version, code) ({requests})", "{{model}} {{version}} {{code}}"),
            unit=units.RequestsPerSecond,
            stacked=True,
        ),
        graph(
            Text(
                "Shadows, and what they leave out",
                "Workers in which a version is the shadow, and requests that were chosen for it "
                "and dropped. full: too many waited for an idle slot, so choose a smaller "
                "`--shadow-share`.",
            ),
            Query(f"sum by (model, version) ({shadowing})", "{{model}} {{version}} servers"),
            Query(
                f"sum by (model, version, reason) ({dropped})",
                "{{model}} {{version}} {{reason}}",
            ),
            unit=units.Short,
        ),
        graph(
            Text(
                "Time of lookups and tower, p99",
                "Of the same requests, by the version that scored them. The default version's is "
                "that of the whole batch, and the shadow scores each request alone.",
            ),
            Query(
                quantile(0.99, "sharded_infer_shadow_seconds", "model", "version", "scorer"),
                "{{model}} {{version}} {{scorer}}",
            ),
            unit=units.Seconds,
        ),
        graph(
            Text(
                "Distance of the distributions",
                "Kolmogorov-Smirnov statistic of both versions' scores for the same requests, "
                "seen at the boundaries of their buckets: 0 where the distributions are equal, 1 "
                "where they do not overlap.",
            ),
            Query(
                f"max by (model, version, output) (abs({buckets} ({scores}) - {buckets} "
                f"({default}))) / {outputs} ({whole})",
                "{{model}} {{version}} {{output}}",
            ),
            unit=units.Short,
        ),
        graph(
            Text(
                "Mean difference of scores",
                "Absolute difference between the scores of both versions for the same sample, on "
                "the mean. A new model differs a little everywhere; compare with earlier releases.",
            ),
            Query(
                f"{outputs} ({differences}) / {outputs} ({compared})",
                "{{model}} {{version}} {{output}}",
            ),
            unit=units.Short,
        ),
        graph(
            Text(
                "Largest difference of scores",
                "The largest absolute difference of the last minute or two. A single sample far "
                "above the mean difference may be a feature that the shadow reads in another way.",
            ),
            Query(
                f"max by (model, version, output) ({largest})", "{{model}} {{version}} {{output}}"
            ),
            unit=units.Short,
        ),
    ]
