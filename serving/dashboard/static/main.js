// The live page: asks the server every two seconds and draws what it says.

import { ENGINE_CHARTS, REQUEST_CHARTS, factsOf } from "./charts.js";
import { element } from "./figure.js";
import { Heatmap } from "./heatmap.js";
import { LineChart } from "./line_chart.js";
import { marksOf } from "./marks.js";
import { Readings } from "./readings.js";
import { PlanView, showHosts, showSwaps, showVersions } from "./tables.js";
import { number, percent, perSecond, seconds, timeOfDay, whole, zone } from "./words.js";

const POLL_MILLISECONDS = 2000, PATIENCE_MILLISECONDS = 5000;
const byId = (id) => document.getElementById(id);
const readings = new Readings();
const plan = new PlanView();
const make = (host) => (spec) => (spec.heat ? new Heatmap(host, spec) : new LineChart(host, spec));
const charts = [
  ...REQUEST_CHARTS.map(make(byId("requests"))),
  ...ENGINE_CHARTS.map(make(byId("engine"))),
];
let newest = null, silentSince = null, paused = false;

const WORDS = {
  loading: "Not ready: models are loading",
  ready: "Ready",
  draining: "Draining: the server answers what it has begun, and ends",
};

// Said to screen readers when it changes, and only then.
const say = (state, words) => {
  const place = byId("state");
  if (place.textContent !== words) place.textContent = words;
  place.dataset.state = state;
  const prefix = state === "ready" ? "" : `${words.split(/[:.]/)[0]}: `;
  document.title = `${prefix}${location.host}, sharded-infer`;
};

// Figures of a server that does not answer are not of now, and do not look so.
const stale = (flag) => {
  document.body.toggleAttribute("data-stale", flag);
  byId("stale").hidden = !flag || !newest;
  if (newest) byId("stale").textContent = `The figures are of ${timeOfDay(newest.now)}.`;
};

const showFacts = (now) => {
  const pairs = [
    ["Requests", perSecond(now.requests)],
    ["Samples", perSecond(now.samples)],
    ["Errors", percent(now.errors)],
    ...now.latencies.map(([label, value]) => [label, seconds(value)]),
    ["In flight", whole(now.inFlight)],
    ["Waiting", whole(now.waiting)],
    ["Batch size", number(now.batch)],
    ["Workers", whole(now.workers)],
  ];
  byId("facts").replaceChildren(...pairs.map(([name, value]) => element("div", {},
    element("dt", { textContent: name }), element("dd", { textContent: value }))));
};

const offerModels = (models) => {
  const choice = byId("model"), names = models.map(({ name }) => name);
  byId("model-choice").hidden = names.length < 2;
  if (names.join("\n") === choice.dataset.names) return;
  const before = choice.value;
  choice.dataset.names = names.join("\n");
  const all = names.length === 1 ? [] : [["", "All models"]];
  choice.replaceChildren(...[...all, ...names.map((name) => [name, name])].map(([value, text]) =>
    element("option", { value, textContent: text })));
  if (names.includes(before)) choice.value = before;
};

const draw = () => {
  if (!newest) return;
  const model = byId("model").value, span = Number(byId("span").value);
  const from = newest.now - span;
  const view = { model, from, until: newest.now, marks: marksOf(newest.swaps, model, from) };
  for (const chart of charts) chart.update(readings, view);
  const pair = readings.windows(0).at(-1);
  showFacts(factsOf(readings, model, pair));
  showVersions(newest.models, readings, pair, newest.now);
  document.body.dataset.drawn = String(newest.now);
};

const take = (said) => {
  readings.add(said);
  newest = said;
  say(said.server.state, WORDS[said.server.state]);
  offerModels(said.models);
  showHosts(said.hosts);
  showSwaps(said.swaps);
  plan.update(said.models);
  draw();
};

const poll = async () => {
  const since = readings.newest?.at ?? 0;
  let said;
  try {
    const response = await fetch(`api/live?since=${since}`, {
      cache: "no-store", signal: AbortSignal.timeout(PATIENCE_MILLISECONDS),
    });
    if (!response.ok) throw new Error(`status ${response.status}`);
    said = await response.json();
  } catch {
    silentSince ??= Date.now() / 1000;
    say("silent", `The server does not answer since ${timeOfDay(silentSince)}. Asking again every 2 s.`);
    stale(true);
    return;
  }
  silentSince = null;
  stale(false);
  take(said);
};

const wait = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));
const run = async () => {
  for (;;) {
    // A page that nobody looks at costs the server nothing; what it missed comes with the next poll.
    if (!paused && !document.hidden) await poll();
    await wait(POLL_MILLISECONDS);
  }
};

byId("host").textContent = location.host;
byId("zone").textContent = zone ? ` (${zone})` : "";
byId("model").addEventListener("change", draw);
byId("span").addEventListener("change", draw);
byId("pause").addEventListener("click", () => {
  paused = !paused;
  byId("pause").setAttribute("aria-pressed", String(paused));
});
run();
