// Lines, or bars that stand on each other, over time: uPlot in a frame.

import { Frame, element } from "./figure.js";
import { drawMarks } from "./marks.js";
import { DASHES, FONT, LINES, paint } from "./paint.js";
import { nothingIn } from "./readings.js";
import { short, timeOfDay } from "./words.js";

const HEIGHT = 190;
const SYNC = "live";
const clock = new Intl.DateTimeFormat(undefined, {
  hour: "2-digit", minute: "2-digit", hourCycle: "h23",
});

// 1, 2 and 5 times the powers of ten between two values above 0. uPlot's own never end where
// the lower value is just below a power, 0.00098 for one.
const roundValues = (low, high) => {
  const values = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.log10(high); power += 1) {
    values.push(...[1, 2, 5].map((digit) => Number(`${digit}e${power}`)));
  }
  return values.filter((value) => low <= value && value <= high);
};
const all = (_, splits) => splits;

const stack = (columns) => {
  const sums = columns[0].map(() => 0);
  return columns.map((column) => column.map((value, place) => (sums[place] += value ?? 0)));
};

export class LineChart {
  // `spec`: key, title, hint, write (a value in words), lines (readings, model) => [{ label, at }],
  // and perhaps log (a logarithmic scale), stacked, and empty (what to say where nothing is).
  constructor(host, spec) {
    this.spec = spec;
    this.frame = new Frame(host, spec);
    this.labels = "";
    this.chart = null;
    new ResizeObserver(() => this.resize()).observe(this.frame.plot);
    document.addEventListener("themechange", () => this.chart?.redraw(false));
  }

  update(readings, { model, from, until, marks }) {
    this.marks = marks;
    const { spec, frame } = this;
    const lines = spec.lines(readings, model);
    frame.figure.hidden = lines === null;
    if (!lines) return;
    const pairs = spec.stacked ? readings.slots(from, until) : readings.windows(from);
    this.times = pairs.map(({ at }) => at);
    this.columns = lines.map(({ at }) => pairs.map((pair) => (pair.to ? at(pair) : null)));
    const any = this.columns.some((column, place) =>
      !lines[place].beside && column.some((value) => value !== null));
    frame.show(any && lines.length > 0, spec.empty ?? nothingIn(pairs));
    this.build(lines.map(({ label }) => label));
    const drawn = spec.stacked && lines.length ? stack(this.columns) : this.columns;
    // The highest of a stack is drawn first, the others over it.
    const ordered = spec.stacked ? drawn.toReversed() : drawn;
    this.range = [from, until];
    this.chart.setData([this.times, ...ordered], true);
    const written = this.columns.map((column) => column.map(spec.write));
    frame.tabulate(this.names, this.times, written);
    this.legend(null);
    const latest = this.names.map((name, place) => `${name} ${written[place].at(-1) ?? "–"}`);
    frame.describe(any ? `now ${latest.join(", ")}` : frame.empty.textContent);
  }

  build(names) {
    if (this.chart && this.labels === names.join("\n")) return;
    this.labels = names.join("\n");
    this.names = names;
    this.chart?.destroy();
    this.frame.keys.replaceChildren(...names.map((name, place) => {
      const mark = element("i", { className: this.spec.stacked ? "block" : `dash${place % 6}` });
      mark.style.color = `var(${LINES[place % 6]})`;
      return element("li", {}, mark, `${name} `, element("b"));
    }));
    const series = names.map((_, place) => this.series(place));
    if (this.spec.stacked) series.reverse();
    this.chart = new uPlot(this.options(series), null, this.frame.plot);
  }

  series(place) {
    const colour = () => paint(LINES[place % 6]);
    if (!this.spec.stacked) {
      const dash = DASHES[place % 6];
      return { stroke: colour, width: 1.75, dash, points: { show: false } };
    }
    const paths = uPlot.paths.bars({ size: [0.85, 24], align: 0 });
    return { stroke: colour, fill: colour, width: 0, paths, points: { show: false } };
  }

  options(series) {
    const { spec } = this;
    const quiet = () => paint("--quiet"), hair = () => paint("--hair");
    const axis = { stroke: quiet, font: FONT, grid: { stroke: hair, width: 1 }, ticks: { show: false } };
    const floor = (_, low, high) => [0, high > 0 ? high * 1.1 : 1];
    const y = { ...axis, size: 58, gap: 6, space: 24, values: (_, at) => at.map((v) =>
      (v === null ? "" : short(spec.write(v)))) };
    if (spec.log) Object.assign(y, { splits: (_, __, low, high) => roundValues(low, high), filter: all,
      grid: { ...axis.grid, filter: all } });
    const around = (_, low, high) => {
      if (!(low > 0)) return [1e-4, 1];
      return [low / 1.5, Math.max(high, low) * 1.5];
    };
    return {
      width: this.width(), height: HEIGHT, legend: { show: false }, padding: [8, 8, 0, 0],
      cursor: {
        y: false, drag: { x: false, y: false }, points: { size: 6 },
        sync: { key: SYNC, scales: ["x", null] }, focus: { prox: -1 },
      },
      scales: {
        x: { time: true, range: () => this.range ?? [0, 1] },
        y: spec.log ? { distr: 3, range: around } : { range: floor },
      },
      axes: [
        { ...axis, size: 26, gap: 4, space: 64, values: (_, at) => at.map((v) => clock.format(v * 1000)),
          incrs: [60, 120, 300, 600] },
        y,
      ],
      series: [{}, ...series],
      hooks: { draw: [(chart) => this.drawMarks(chart)], setCursor: [(chart) => this.legend(chart.cursor.idx)] },
    };
  }

  drawMarks(chart) {
    const { left, top, height } = chart.bbox;
    const x = (at) => chart.valToPos(at, "x", true);
    drawMarks(chart.ctx, this.marks.filter(({ at }) => x(at) >= left),
      { x, top, bottom: top + height, scale: uPlot.pxRatio });
  }

  // The values where the cursor is, or the newest.
  legend(place) {
    const shown = place ?? this.times.length - 1;
    this.frame.keys.querySelectorAll("b").forEach((value, line) => {
      value.textContent = this.spec.write(this.columns[line]?.[shown] ?? null);
    });
    this.frame.figure.dataset.at = place === null || place === undefined ? "" : timeOfDay(this.times[shown]);
  }

  width() {
    return Math.max(200, this.frame.plot.clientWidth);
  }

  resize() {
    // Nothing while the table stands in its place.
    if (this.chart && this.frame.plot.clientWidth && this.chart.width !== this.width()) {
      this.chart.setSize({ width: this.width(), height: HEIGHT });
    }
  }
}
