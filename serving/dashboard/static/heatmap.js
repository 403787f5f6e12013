// How many requests took how long, over time: a cell for each slot and bucket of the histogram.

import { Frame } from "./figure.js";
import { drawMarks } from "./marks.js";
import { FONT, paint } from "./paint.js";
import { WINDOW_SECONDS, distribution, nothingIn } from "./readings.js";
import { seconds, short, things, timeOfDay, whole } from "./words.js";

const HEIGHT = 190, LEFT = 58, BOTTOM = 26, TOP = 8, RIGHT = 8;
const clock = new Intl.DateTimeFormat(undefined, {
  hour: "2-digit", minute: "2-digit", hourCycle: "h23",
});

export class Heatmap {
  constructor(host, spec) {
    this.spec = spec;
    this.frame = new Frame(host, spec);
    this.canvas = document.createElement("canvas");
    this.frame.plot.append(this.canvas);
    this.frame.keys.className = "keys heat";
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => this.say(null));
    new ResizeObserver(() => this.draw()).observe(this.frame.plot);
    document.addEventListener("themechange", () => this.draw());
  }

  update(readings, { model, from, until, marks }) {
    this.marks = marks;
    const series = readings.find(this.spec.family, { model });
    const slots = readings.slots(from, until);
    this.range = [from, until];
    this.cells = slots.map((pair) => ({ at: pair.at, ...distribution(series, pair) }));
    const uppers = new Set();
    for (const { buckets } of this.cells)
      for (const { upper, count } of buckets) if (count) uppers.add(upper);
    const finite = [...new Set(series.flatMap(({ boundaries }) => boundaries))].sort((a, b) => a - b);
    // Rows from the lowest bucket in use to the highest, with one of room on either side.
    const used = finite.map((upper) => uppers.has(upper));
    const first = Math.max(0, used.indexOf(true) - 1);
    const beyond = uppers.has(Infinity);
    const last = beyond ? finite.length : Math.min(finite.length - 1, used.lastIndexOf(true) + 1);
    this.rows = uppers.size ? [...finite, Infinity].slice(first, last + 1) : [];
    this.lowers = new Map([...finite, Infinity].map((upper, place) => [upper, finite[place - 1] ?? 0]));
    this.most = Math.max(1, ...this.cells.flatMap(({ buckets }) => buckets.map(({ count }) => count)));
    this.frame.show(uppers.size > 0, nothingIn(slots));
    this.tabulate();
    this.draw();
    this.say(null);
  }

  tabulate() {
    const heads = this.rows.map((upper) => this.rowName(upper));
    const columns = this.rows.map((upper) => this.cells.map(({ total, buckets }) =>
      (total ? whole(buckets.find((bucket) => bucket.upper === upper)?.count ?? 0) : "–")));
    this.frame.tabulate(heads, this.cells.map(({ at }) => at), columns);
    const filled = this.cells.filter(({ total }) => total).at(-1);
    if (!filled) return this.frame.describe(this.frame.empty.textContent);
    const fullest = filled.buckets.reduce((a, b) => (b.count > a.count ? b : a));
    return this.frame.describe(`of ${things(filled.total, "request")} in the last ${WINDOW_SECONDS} s, `
      + `most took ${this.rowName(fullest.upper)}`);
  }

  rowName(upper) {
    if (upper === Infinity) return `over ${short(seconds(this.lowers.get(upper)))}`;
    return `${short(seconds(this.lowers.get(upper)))} to ${short(seconds(upper))}`;
  }

  place() {
    const width = this.frame.plot.clientWidth - LEFT - RIGHT;
    const height = HEIGHT - TOP - BOTTOM;
    const [from, until] = this.range;
    return { width, height, x: (at) => LEFT + width * (at - from) / (until - from),
      row: height / Math.max(1, this.rows.length) };
  }

  draw() {
    if (!this.cells || !this.frame.plot.clientWidth) return;
    const { canvas } = this, ratio = devicePixelRatio || 1;
    const full = Math.max(200, this.frame.plot.clientWidth);
    canvas.width = full * ratio;
    canvas.height = HEIGHT * ratio;
    canvas.style.width = `${full}px`;
    canvas.style.height = `${HEIGHT}px`;
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    this.drawAxes(pen);
    const { x, row } = this.place();
    const half = WINDOW_SECONDS / 2;
    pen.fillStyle = paint("--heat");
    for (const { at, buckets } of this.cells) {
      const left = Math.max(LEFT, x(at - half)), right = x(at + half);
      for (const { upper, count } of buckets) {
        const place = this.rows.indexOf(upper);
        if (!count || place < 0) continue;
        // Few of many are what one looks for: they are seen too.
        pen.globalAlpha = 0.14 + 0.86 * Math.sqrt(count / this.most);
        pen.fillRect(left + 0.5, TOP + row * (this.rows.length - 1 - place) + 0.5,
          Math.max(1, right - left - 1), Math.max(1, row - 1));
      }
    }
    pen.globalAlpha = 1;
    drawMarks(pen, this.marks, { x, top: TOP, bottom: HEIGHT - BOTTOM, scale: 1 });
  }

  drawAxes(pen) {
    const { width, height, x, row } = this.place();
    pen.font = FONT;
    pen.strokeStyle = paint("--hair");
    pen.fillStyle = paint("--quiet");
    pen.textAlign = "right";
    pen.textBaseline = "middle";
    const every = Math.ceil(18 / row);
    this.rows.forEach((upper, place) => {
      if (upper === Infinity || place % every) return;
      const y = TOP + row * (this.rows.length - 1 - place);
      pen.fillText(short(seconds(upper)), LEFT - 6, Math.max(y, 6));
      pen.fillRect(LEFT - 4, y, 4, 1);
    });
    pen.beginPath();
    pen.rect(LEFT, TOP, width, height);
    pen.stroke();
    pen.textAlign = "center";
    const [from, until] = this.range;
    const step = [60, 120, 300, 600].find((s) => width * s / (until - from) >= 64) ?? 600;
    for (let at = Math.ceil(from / step) * step; at <= until; at += step) {
      pen.fillText(clock.format(at * 1000), x(at), HEIGHT - BOTTOM / 2 + 2);
    }
  }

  point(event) {
    const box = this.canvas.getBoundingClientRect();
    const { width, row } = this.place();
    const [from, until] = this.range;
    const at = from + (event.clientX - box.left - LEFT) / width * (until - from);
    const cell = this.cells.find((one) => Math.abs(one.at - at) <= WINDOW_SECONDS / 2);
    const place = this.rows.length - 1 - Math.floor((event.clientY - box.top - TOP) / row);
    this.say(cell && this.rows[place] !== undefined ? { cell, upper: this.rows[place] } : null);
  }

  say(found) {
    const item = document.createElement("li");
    if (!this.rows?.length) {
      this.frame.keys.replaceChildren();
      return;
    }
    if (!found) {
      item.textContent = `Strongest colour: ${things(this.most, "request")} in ${WINDOW_SECONDS} s`;
    } else {
      const count = found.cell.buckets.find(({ upper }) => upper === found.upper)?.count ?? 0;
      item.textContent = `${timeOfDay(found.cell.at)}: ${whole(count)} took ${this.rowName(found.upper)}`;
    }
    this.frame.keys.replaceChildren(item);
  }
}
