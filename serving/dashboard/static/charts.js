// The charts of the page: which figures each draws, and of which metrics.

import { counted, distribution, gauge, observed, quantile, rate } from "./readings.js";
import { bytes, number, percent, perSecond, seconds } from "./words.js";

const OWN = "sharded_infer_";
export const QUANTILES = [["p50", 0.5], ["p90", 0.9], ["p99", 0.99], ["p99.9", 0.999]];
const largest = (a, b) => Math.max(a, b);

// Several lines of the same histogram ask for the same distribution, one after another.
const distributionOf = (series) => {
  const known = new Map();
  return (pair) => {
    if (!known.has(pair)) known.set(pair, distribution(series, pair));
    return known.get(pair);
  };
};

// What is there whether requests come or not: it is drawn beside what does.
const reference = (label, series) =>
  (series.length ? [{ label, beside: true, at: (pair) => gauge(series, pair, largest) }] : []);

export const percentileLines = (readings, model, version = "") => {
  const of = distributionOf(readings.find(`${OWN}request_seconds`, { model, version }));
  const objective = readings.find(`${OWN}latency_objective_seconds`, { model, version });
  return [
    ...QUANTILES.map(([label, share]) => ({ label, at: (pair) => quantile(of(pair), share) })),
    ...reference("objective", objective),
  ];
};

// One line by version of a model, or by model where all are shown.
const byVersion = (readings, family, model, at) => {
  const label = model ? "version" : "model";
  return readings.labelValues(family, label, { model }).filter((value) => value !== "unknown")
    .map((value) => ({
      label: model ? `version ${value}` : value,
      at: (pair) => at(readings.find(family, model ? { model, version: value } : { model: value }), pair),
    }));
};

// A line for each value of a label that was ever counted.
const byLabel = (readings, family, label, model) =>
  readings.labelValues(family, label, { model })
    .map((value) => ({ value, series: readings.find(family, { model, [label]: value }) }))
    .filter(({ value, series }) => value !== "OK" && gauge(series, { to: readings.newest }))
    .map(({ value, series }) => ({ label: value, at: (pair) => rate(series, pair) }));

const PHASES = ["decode", "lookup", "tower", "encode"];

const phaseLines = (readings, model) => {
  const requests = readings.find(`${OWN}request_seconds`, { model });
  const mean = (series) => (pair) => {
    const { count } = observed(requests, pair);
    return count ? observed(series, pair).sum / count : null;
  };
  return [
    { label: "queue", at: mean(readings.find(`${OWN}queue_seconds`, { model })) },
    ...PHASES.map((phase) => ({
      label: phase, at: mean(readings.find(`${OWN}phase_seconds`, { model, phase })),
    })),
  ];
};

const batchLines = (readings, model) => {
  const mean = (family) => (pair) => {
    const { count, sum } = observed(readings.find(family, { model }), pair);
    return count ? sum / count : null;
  };
  const of = distributionOf(readings.find(`${OWN}batch_samples`, { model }));
  return [
    { label: "samples, mean", at: mean(`${OWN}batch_samples`) },
    { label: "samples, p99", at: (pair) => quantile(of(pair), 0.99) },
    { label: "requests, mean", at: mean(`${OWN}batch_requests`) },
  ];
};

// Shares of positions and of users; none of a server without states.
const keptLines = (readings, model) => {
  const lines = [["positions", "user_positions", "kept"], ["users", "user_states", "hit"]]
    .map(([label, family, result]) => ({
      label, all: readings.find(OWN + family, { model }), kept: readings.find(OWN + family, { model, result }),
    }))
    .filter(({ all }) => gauge(all, { to: readings.newest }))
    .map(({ label, all, kept }) => ({ label, at: (pair) => {
      const count = counted(all, pair);
      return count ? counted(kept, pair) / count : null;
    } }));
  return lines.length ? lines : null;
};

const now = (readings, family, wanted, combine) => (pair) =>
  gauge(readings.find(OWN + family, wanted), pair, combine);

// Null: the server has no such metric, so there is no such chart.
const where = (readings, family, lines) =>
  (readings.find(OWN + family).length ? lines() : null);

const byWorker = (readings, family, at) => where(readings, family, () =>
  readings.labelValues(OWN + family, "worker").map((worker) => ({
    label: `worker ${worker}`, at: (pair) => at(readings.find(OWN + family, { worker }), pair),
  })));

export const REQUEST_CHARTS = [
  { key: "latency", title: "Latency", hint: "Decoded message to encoded answer; log scale",
    write: seconds, log: true, lines: percentileLines },
  { key: "heat", title: "Latency heatmap", hint: "Requests by latency; stronger colour is more", heat: true,
    family: `${OWN}request_seconds` },
  { key: "throughput", title: "Requests", hint: "Answered a second, errors included", write: perSecond,
    lines: (readings, model) => byVersion(readings, `${OWN}requests`, model, rate) },
  { key: "samples", title: "Samples", hint: "Pairs scored a second", write: perSecond,
    lines: (readings, model) => byVersion(readings, `${OWN}samples`, model, rate) },
  { key: "errors", title: "Errors", hint: "A second, by gRPC status code", write: perSecond,
    empty: "No errors since the server started",
    lines: (readings, model) => byLabel(readings, `${OWN}requests`, "code", model) },
  { key: "refused", title: "Refused", hint: "Requests a second that were not run, by reason", write: perSecond,
    empty: "None refused since the server started",
    lines: (readings, model) => byLabel(readings, `${OWN}requests_refused`, "reason", model) },
  { key: "slow", title: "Slow requests", hint: "A second, by the phase to blame", write: perSecond,
    empty: "None since the server started",
    lines: (readings, model) => where(readings, "slow_requests", () =>
      byLabel(readings, `${OWN}slow_requests`, "phase", model)) },
];

export const ENGINE_CHARTS = [
  { key: "phases", title: "Phases", hint: "Where a request's time goes, mean", write: seconds, stacked: true,
    lines: phaseLines },
  { key: "batches", title: "Batches", hint: "What is run together", write: number, lines: batchLines },
  { key: "queue", title: "Queue", hint: "Requests that wait, and all that are being answered", write: number,
    empty: "No data yet",
    lines: (readings, model) => [
      { label: "waiting", at: now(readings, "queue_requests", { model }) },
      { label: "in flight, all models", at: now(readings, "requests_in_flight", {}) },
    ] },
  { key: "oldest", title: "Longest wait", hint: "Age of the request that waits longest", write: seconds,
    empty: "No data yet",
    lines: (readings, model) => where(readings, "queue_oldest_seconds", () => [
      { label: "oldest", at: now(readings, "queue_oldest_seconds", { model }, largest) }]) },
  { key: "busy", title: "Run slots", hint: "Busy at a time, mean; a slot is a core at work", write: number,
    lines: (readings, model) => [
      ...byVersion(readings, `${OWN}busy_seconds`, model, rate),
      ...reference("slots", readings.find(`${OWN}slots`)),
    ] },
  { key: "ranks", title: "Ranks", hint: "Lookups at a time on each rank, mean", write: number,
    lines: (readings, model) => where(readings, "rank_busy_seconds", () =>
      byLabel(readings, `${OWN}rank_busy_seconds`, "rank", model)
        .map((line) => ({ ...line, label: `rank ${line.label}` }))) },
  { key: "kept", title: "User states", hint: "Share of positions and of users whose state was kept", write: percent,
    lines: keptLines },
  { key: "cpu", title: "Processor", hint: "Cores that each worker uses", write: number, empty: "No data yet",
    lines: (readings) => byWorker(readings, "worker_cpu_seconds", rate) },
  { key: "memory", title: "Memory", hint: "Resident bytes of each worker, shared pages included", write: bytes,
    empty: "No data yet",
    lines: (readings) => byWorker(readings, "worker_resident_bytes", gauge) },
  { key: "faults", title: "Page faults", hint: "Pages mapped a second, minor faults", write: perSecond,
    empty: "No data yet",
    lines: (readings) => [{ label: "all workers", at: (pair) =>
      rate(readings.find(`${OWN}minor_page_faults`), pair) }] },
];

// The figures of this moment, above all charts.
export const factsOf = (readings, model, pair) => {
  const of = distribution(readings.find(`${OWN}request_seconds`, { model }), pair);
  const all = readings.find(`${OWN}requests`, { model });
  const answered = counted(all, pair);
  const good = counted(readings.find(`${OWN}requests`, { model, code: "OK" }), pair);
  const { count, sum } = observed(readings.find(`${OWN}batch_samples`, { model }), pair);
  return {
    requests: rate(all, pair),
    samples: rate(readings.find(`${OWN}samples`, { model }), pair),
    errors: answered ? (answered - good) / answered : null,
    latencies: QUANTILES.map(([label, share]) => [label, quantile(of, share)]),
    inFlight: gauge(readings.find(`${OWN}requests_in_flight`), pair),
    waiting: gauge(readings.find(`${OWN}queue_requests`, { model }), pair),
    batch: count ? sum / count : null,
    workers: gauge(readings.find(`${OWN}workers`), pair),
  };
};
