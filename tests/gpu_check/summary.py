"""A page of Markdown on what a check measured: figures beside their limits, then the others."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Report = Mapping[str, Any]
_LEAST_SHARE = 0.8  # of a copy's rate, in bytes that must move
_LEAST_SAMPLES_OF_LOOKUPS = 2048
# Samples of 270 pairs a second of DLRM-v2 in bf16, offline, by a word of the card's name.
_LEAST_RATES = {"H100": 25_000, "H200": 30_000}
_PAIRS = 270
# Of a batch's replay, and of the memory estimated.
MOST_OVERHEAD, MEMORY_ERROR = 0.05, 0.05


def summary(report: Report) -> str:
    """The page; of a dry run nothing is judged."""
    environment, is_dry = report.get("environment", {}), report["dry_run"]
    card = environment.get("card", "no card, a dry run")
    versions = [f"{name} {environment.get(name)}" for name in ("torch", "triton", "cuda")]
    lines = [
        f"{card}; {', '.join(versions)}; seed {report['seed']}",
        "",
        "| figure | measured | limit | ratio | |",
        "| --- | --- | --- | --- | --- |",
        *(_line(*judged, is_dry=is_dry) for judged in _judged(report, card)),
        "",
        "| figure | measured |",
        "| --- | --- |",
        *(f"| {figure} | {measured} |" for figure, measured in _measured(report)),
        "",
        *(f"- FAILED: {failure}" for failure in report["failures"]),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _line(figure: str, measured: float, sign: str, limit: float, *, is_dry: bool) -> str:
    passed = measured >= limit if sign == "≥" else measured <= limit
    verdict = "not judged" if is_dry else "passed" if passed else "**missed**"
    ratio = measured / limit
    return f"| {figure} | {measured:,.6g} | {sign} {limit:,.6g} | {ratio:.2f} | {verdict} |"


def _judged(report: Report, card: str) -> Iterator[tuple[str, float, str, float]]:
    for line in report.get("lookups", {}).get("measured", []):
        is_judged = line["batch"] >= _LEAST_SAMPLES_OF_LOOKUPS or report["dry_run"]
        if line["kernel"] == "triton" and line["ids"] == "uniform" and is_judged:
            name = f"{line['row_format']}, {line['bags']}, {line['batch']} samples"
            yield f"lookups, {name}, share of a copy", line["share_of_copy"], "≥", _LEAST_SHARE
    for line in report.get("engine", {}).get("measured", []):
        name = f"DLRM-v2, {line['precision']}"
        least = next((rate for word, rate in _LEAST_RATES.items() if word in card), None)
        if line["precision"] == "bf16" and least is not None:
            rate = max(rate["pairs_per_second"] for rate in line["offline"]) / _PAIRS
            yield f"{name}, samples/s offline", rate, "≥", least
        largest = max(line["replays"], key=lambda replay: replay["batch"])
        beyond = largest["overhead_seconds"] / largest["replay_seconds"]
        yield (
            f"{name}, batches of {largest['batch']}, time / replay",
            1 + beyond,
            "≤",
            1 + MOST_OVERHEAD,
        )
        if line["taken_bytes"] is not None:
            ratio = line["taken_bytes"] / line["estimated_bytes"]
            yield f"{name}, memory taken / estimated", ratio, "≤", 1 + MEMORY_ERROR
    for precision, lines in _grouped(report.get("towers", {}).get("measured", []), "precision"):
        worst = max(line["max_score_diff"] for line in lines)
        name = f"tower, {precision}, difference from fp32"
        yield name, worst, "≤", lines[0]["allowed_score_diff"]


def _measured(report: Report) -> Iterator[tuple[str, str]]:
    seconds = report.get("stage_seconds", {}).items()
    yield "seconds", ", ".join(f"{name} {taken:.0f}" for name, taken in seconds)
    if rate := report.get("ceilings", {}).get("copy_bytes_per_second"):
        yield "copy, read and written", f"{rate / 1e12:.2f} TB/s"
    yield "comparisons with the reference", f"{report.get('correctness', {}).get('checked')}"
    lookups = report.get("lookups", {}).get("measured", [])
    for names, lines in _grouped(lookups, "kernel", "row_format", "bags", "ids"):
        parts = [f"{line['seconds'] * 1e6:.1f} µs ({line['share_of_copy']:.0%})" for line in lines]
        yield f"{names}; {_batches(lines)} samples", ", ".join(parts)
    for name, lines in _grouped(report.get("towers", {}).get("measured", []), "precision"):
        parts = [
            f"{line['seconds'] * 1e6:.0f} µs ({line['share_of_ceiling']:.0%})" for line in lines
        ]
        yield f"tower, {name}; {_batches(lines)} samples (of a large product)", ", ".join(parts)
    for line in report.get("engine", {}).get("measured", []):
        name = f"DLRM-v2, {line['precision']}"
        for offline in line["offline"]:
            stages = line["stages"][str(offline["batch"])]
            micros = ", ".join(
                f"{part} {stages[f'{part}_seconds'] * 1e6:.0f}"
                for part in ("write", "copy", "lookup", "tower", "replay")
            )
            rate = f"{offline['pairs_per_second']:,.0f} pairs/s"
            yield f"{name}, batches of {offline['batch']}", f"{rate}; µs: {micros}"
        yield f"{name}, within 60 ms at p99", f"{line['server_within_60_ms']:,.0f} pairs/s"
        for other, offline in line.get("offline_otherwise", {}).items():
            rates = ", ".join(f"{rate['pairs_per_second']:,.0f}" for rate in offline)
            yield f"{name}, {other}", f"{rates} pairs/s"


def _grouped(lines: Sequence[Report], *names: str) -> Iterator[tuple[str, list[Report]]]:
    groups: dict[str, list[Report]] = defaultdict(list)
    for line in lines:
        groups[", ".join(str(line[name]) for name in names)].append(line)
    yield from groups.items()


def _batches(lines: Sequence[Report]) -> str:
    return ", ".join(str(line["batch"]) for line in lines)
