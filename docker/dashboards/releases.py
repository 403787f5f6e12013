"""Releases and the quality of what is served: versions, loads, scores, ids, the cost table."""

from grafana_foundation_sdk.builders.dashboard import Dashboard
from grafana_foundation_sdk.cog.builder import Builder
from grafana_foundation_sdk.models import units
from grafana_foundation_sdk.models.dashboard import Panel

from dashboards.frame import filled, framed
from dashboards.panels import Query, Text, dashed, graph, heatmap, stat
from dashboards.selectors import of_model, of_server, of_version, rate

_DAY_SECONDS = 86_400.0


def releases_dashboard() -> Dashboard:
    """What is served, how it came there, and whether it behaves as before."""
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
                "The version that answers requests which name none. Not what you published: see "
                "Load failures, and `sharded-infer repo watch`.",
            ),
            Query(f"max by (model) ({of_model('sharded_infer_served_version')})", "{{model}}"),
            unit=units.Number,
            decimals=0,
        ),
        stat(
            Text(
                "Published",
                "How long ago the served version was published. Older than your training's "
                "rhythm: the pipeline or the follower stands still.",
            ),
            Query(f"max by (model) ({of_model('sharded_infer_served_age_seconds')})", "{{model}}"),
            unit=units.Seconds,
            warn=2 * _DAY_SECONDS,
            bad=7 * _DAY_SECONDS,
        ),
        stat(
            Text(
                "Versions in service at once",
                "Different versions that workers and replicas serve by default. More than one "
                "for longer than a release: a replica could not load the new one.",
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
                "Versions that were loaded by every worker, by replica. None where there should "
                "be: is anything published, and do labels point at it?",
            ),
            Query(f"max by (model) (increase({loads}[1d]))", "{{model}}"),
            unit=units.Short,
            decimals=0,
        ),
        stat(
            Text(
                "Failed loads in the last day",
                "Versions that were refused; the old one serves on. See which phase below, and "
                "the reason in the log or RepositoryIndex.",
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
                "How long ago versions and labels were read last. Above minutes: the repository "
                "does not answer, or --poll-seconds is 0.",
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
    loaded = of_version("sharded_infer_model_loaded")
    missing = of_model("sharded_infer_model_missing")
    labels = of_model("sharded_infer_label_version")
    build = of_server("sharded_infer_build_info")
    return [
        graph(
            Text(
                "Served version, by worker",
                "All lines of a model step up together. One that stays behind is a worker that "
                "still loads, or a replica that could not.",
            ),
            Query(served, "{{model}} {{instance}} worker {{worker}}"),
            unit=units.Number,
            steps=True,
        ),
        graph(
            Text(
                "Requests, by version",
                "How traffic moves from version to version. Traffic on an old version long "
                "after a release: clients that name it by number.",
            ),
            Query(f"sum by (model, version) ({requests})", "{{model}} {{version}}"),
            unit=units.RequestsPerSecond,
            stacked=True,
        ),
        graph(
            Text(
                "Labels",
                "The version that each label means. Moves without a release of yours: see the "
                "history with `sharded-infer repo show`.",
            ),
            Query(f"max by (model, label) ({labels})", "{{model}} {{label}}"),
            unit=units.Number,
            steps=True,
        ),
        graph(
            Text(
                "Age of loaded versions",
                "Time since each was published. A line that climbs without another below it: "
                "nothing new arrives.",
            ),
            Query(f"max by (model, version) (time() - {created})", "{{model}} {{version}}"),
            unit=units.Seconds,
        ),
        graph(
            Text(
                "Loaded and missing, on how many replicas",
                "A version that is loaded on fewer replicas than the others and stays so was "
                "refused by the rest. Missing: models of which no version can be served; the log "
                "and RepositoryIndex say why.",
            ),
            Query(f"sum by (model, version) ({loaded})", "{{model}} {{version}}"),
            Query(f"sum by (model) ({missing})", "{{model}} missing"),
            unit=units.Short,
            steps=True,
        ),
        graph(
            Text(
                "Builds",
                "Replicas by the build that they run. Two for long: a rollout of the server "
                "itself has stopped halfway.",
            ),
            Query(f"count by (build, torch) ({build})", "{{build}} torch {{torch}}"),
            unit=units.Short,
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
                "Versions that every worker of a replica loaded. Several in a row for one "
                "release: it is being published again and again.",
            ),
            Query(f"sum by (model) (increase({loads}[$__rate_interval]))", "{{model}}"),
            unit=units.Short,
            steps=True,
        ),
        graph(
            Text(
                "Load failures, by phase",
                "fetch: the store; verify: altered files, publish again; memory: no room beside "
                "the old version; golden: it does not score as it was published; serve: a file "
                "was cut while it was served; open, warm_up, workers: see the log.",
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
                "Of the slowest replica. fetch grows with the artifact and the store, warm_up "
                "with the tower: what limits how fast a release can be.",
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
                "How the scores of sampled responses are spread, all outputs together. The shape "
                "should survive a release; a jump at a version marker is a model or a feature "
                "that changed: roll back (docs/runbook.md, Rolling back) and look.",
            ),
            f"sum by (le) (increase({of_version(scores + '_bucket')}[$__rate_interval]))",
            unit=units.Short,
        ),
        graph(
            Text(
                "Median score, by version and output",
                "Versions of a model side by side should agree. A slow drift is the world "
                "changing; a jump is not.",
            ),
            Query(median, "{{model}} {{version}} {{output}}"),
            unit=units.Short,
            width=12,
        ),
        graph(
            Text(
                "Ids out of range, a sample",
                "Ids that were ignored or wrapped because their table does not have them. Rises: "
                "a client's ids are of another vocabulary than the version's; compare with the "
                "version markers.",
            ),
            Query(
                f"sum by (model, version) ({outside}) / sum by (model, version) ({samples})",
                "{{model}} {{version}}",
            ),
            unit=units.Short,
            width=12,
        ),
        graph(
            Text(
                "Empty bags, by feature",
                "Share of the samples that had no ids of a feature, of the ten features that most "
                "lack. At 100%: a client does not send it, and its scores are made without it; "
                "required in model.toml refuses such requests (docs/model-toml.md). A jump: "
                "what fills the feature has failed.",
            ),
            Query(
                f"topk(10, sum by (model, feature) ({empty}) / on (model) group_left "
                f"sum by (model) ({samples}))",
                "{{model}} {{feature}}",
            ),
            unit=units.PercentUnit,
            width=12,
            most=1.0,
        ),
        heatmap(
            Text(
                "Cost table: measured over predicted",
                "Time of each batch over what the cost table expected. Dark at 1 is right. Far "
                "off: decisions on merging and deadlines are made with wrong figures; other work "
                "on the machine is the usual cause.",
            ),
            f"sum by (le) (increase({of_version(ratio + '_bucket')}[$__rate_interval]))",
            unit=units.Short,
            width=12,
        ),
        dashed(
            graph(
                Text(
                    "Measured over predicted, by version",
                    "Of all batch time. Stays above 1 after a release: the new version was "
                    "measured on a quiet machine; it learns within minutes.",
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
