// The models with their versions, what happened to them lately, and the plan of one.

import { element } from "./figure.js";
import { distribution, gauge, quantile, rate } from "./readings.js";
import { age, bytes, moment, perSecond, seconds, things, whole } from "./words.js";

const OWN = "sharded_infer_";
const byId = (id) => document.getElementById(id);
const cell = (text, className = "") => element("td", { className, textContent: text });

// A table is written anew only where it differs, so that what is marked in it stays marked.
const replaceRows = (body, rows) => {
  const text = rows.map((row) => row.outerHTML).join("");
  if (body.dataset.text === text) return;
  body.dataset.text = text;
  body.replaceChildren(...rows);
};

const STATES = { healthy: "state-ready", ejected: "state-failed" };

const nameMarks = (names) => names.map((name) =>
  element("span", { className: name === "default" ? "mark-default" : "mark", textContent: name }));

export const showVersions = (models, readings, pair, now) => {
  const rows = models.flatMap((model) => model.versions.flatMap((version) => {
    const wanted = { model: model.name, version: String(version.version) };
    const requests = readings.find(`${OWN}requests`, wanted);
    const of = distribution(readings.find(`${OWN}request_seconds`, wanted), pair);
    const tableBytes = gauge(readings.find(`${OWN}table_bytes`, wanted), pair);
    const published = version.created ? `${age(now - version.created)} ago` : "–";
    const state = element("td", { className: `state-${version.state}`, textContent: version.state });
    const row = element("tr", {},
      element("th", { scope: "row", className: "name", textContent: `${model.name} ${version.version}` }),
      state,
      element("td", { className: "keep" }, ...nameMarks(version.names)),
      cell(published, "n"),
      cell(bytes(version.plan?.table_bytes || tableBytes || null), "n"),
      cell(requests.length ? perSecond(rate(requests, pair)) : "–", "n"),
      ...[0.5, 0.99, 0.999].map((share) => cell(seconds(quantile(of, share)), "n")),
      cell(requests.length ? whole(gauge(requests, pair)) : "–", "n"));
    row.dataset.version = `${model.name} ${version.version}`;
    const below = (className, textContent) =>
      element("tr", {}, element("td", { colSpan: 10 }, element("div", { className, textContent })));
    const shown = [row];
    for (const { labels } of readings.find(`${OWN}tower_precision_info`, wanted)) {
      if (labels.published !== labels.running) {
        shown.push(below("provenance", `tower published in ${labels.published}, runs in ${labels.running}`));
      }
    }
    if (version.provenance) shown.push(below("provenance", version.provenance));
    if (version.reason) {
      row.className = "failed";
      shown.push(below("reason", version.reason));
    }
    return shown;
  }));
  if (!rows.length) rows.push(element("tr", {}, element("td", { colSpan: 10, textContent: "No model is loaded yet." })));
  replaceRows(byId("versions"), rows);
};

// As one process of the server sees them; only fronts have any.
export const showHosts = (hosts) => {
  byId("hosts").hidden = !hosts.length;
  replaceRows(byId("replicas"), hosts.flatMap(({ host, replicas }) => replicas.map((replica) => {
    const row = element("tr", {},
      element("th", { scope: "row", className: "name", textContent: `host ${host} at ${replica.address}` }),
      element("td", { className: STATES[replica.state], textContent: replica.state }),
      cell(whole(replica.in_flight), "n"),
      cell(seconds(replica.latency_seconds || null), "n"),
      cell(replica.versions.join(", ") || "–"));
    row.dataset.replica = replica.address;
    return row;
  })));
};

const WHAT = { loaded: "loaded", failed: "failed", named: "named", unloaded: "let go" };

const happened = (swap) => {
  if (swap.event !== "named") return WHAT[swap.event];
  const from = swap.previous ? `, before: version ${swap.previous}` : "";
  return `is ${swap.name} now${from}`;
};

const because = (swap) => {
  if (swap.event === "failed") return `${swap.phase}: ${swap.reason}`;
  const phases = Object.entries(swap.phases);
  return phases.map(([phase, took]) => `${phase.replace("_", " ")} ${seconds(took)}`).join(", ");
};

export const showSwaps = (swaps) => {
  const items = swaps.map((swap) => element("li", {},
    element("time", { dateTime: new Date(swap.at * 1000).toISOString(), textContent: moment(swap.at) }),
    element("span", { className: "name", textContent: `${swap.model} ${swap.version}` }),
    element("span", { className: `state-${swap.event}`, textContent: happened(swap) }),
    element("span", { className: "why", textContent: because(swap) })));
  if (!items.length) items.push(element("li", { textContent: "None since the server started." }));
  replaceRows(byId("swaps"), items);
};

// The drawing is the server's; it is fetched when another version is chosen.
export class PlanView {
  constructor() {
    this.choice = byId("plan-version");
    this.shown = null;
    this.plans = new Map();
    this.choice.addEventListener("change", () => this.load());
  }

  update(models) {
    this.plans = new Map(models.flatMap((model) =>
      model.versions.filter(({ plan }) => plan).map((version) =>
        [`${model.name} ${version.version}`, { ...version.plan, isDefault: version.names.includes("default") }])));
    const names = [...this.plans.keys()];
    const options = [...this.choice.options].map(({ value }) => value);
    if (names.join("\n") !== options.join("\n")) {
      const before = this.choice.value;
      this.choice.replaceChildren(...names.map((name) => element("option", { value: name, textContent: name })));
      const serving = names.find((name) => this.plans.get(name).isDefault);
      this.choice.value = this.plans.has(before) ? before : serving ?? names[0] ?? "";
    }
    this.load();
  }

  async load() {
    const plan = this.plans.get(this.choice.value);
    if (!plan || this.shown === plan.url) return;
    this.shown = plan.url;
    try {
      const response = await fetch(plan.url);
      if (!response.ok) throw new Error(response.statusText);
      const drawing = await response.text();
      if (this.shown !== plan.url) return;
      // Made by the server from escaped names; the page's policy lets no script in it run.
      byId("plan").innerHTML = drawing;
      byId("plan-words").textContent = plan.topology
        ? `${plan.topology}: ${things(plan.ranks, "rank")}, ${things(plan.tables, "table")}, ${bytes(plan.table_bytes)}`
        : "";
    } catch {
      // Asked for again with the next poll.
      this.shown = null;
    }
  }
}

