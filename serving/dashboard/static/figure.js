// The frame of a chart: title, what it shows in words, keys with values, and a table instead.

import { timeOfDay } from "./words.js";

const element = (tag, properties = {}, ...children) => {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
};
export { element };

const ROWS = 30;

export class Frame {
  constructor(host, { key, title, hint }) {
    const id = `chart-${key}`;
    this.plot = element("div", { className: "plot" });
    this.plot.setAttribute("role", "img");
    this.empty = element("p", { className: "empty", textContent: "No data yet" });
    this.keys = element("ul", { className: "keys" });
    this.table = element("div", { className: "scroll values", hidden: true, tabIndex: 0 });
    this.table.setAttribute("role", "region");
    this.table.setAttribute("aria-label", `${title}, as a table`);
    this.button = element("button", { type: "button", textContent: "Table", title: "Show as table" });
    this.button.setAttribute("aria-expanded", "false");
    this.button.setAttribute("aria-label", `Table: show ${title} as a table`);
    this.button.addEventListener("click", () => {
      this.table.hidden = !this.table.hidden;
      const open = !this.table.hidden;
      this.button.setAttribute("aria-expanded", String(open));
      this.stage.hidden = this.keys.hidden = open;
      this.fill();
    });
    const heading = element("h3", { id, textContent: title });
    this.stage = element("div", { className: "stage" }, this.plot, this.empty);
    this.figure = element(
      "figure", { className: "chart" },
      element("div", { className: "head" }, heading, this.button),
      element("p", { className: "quiet", textContent: hint }),
      this.stage,
      this.keys, this.table,
    );
    this.figure.setAttribute("aria-labelledby", id);
    this.title = title;
    this.rows = { heads: [], times: [], columns: [] };
    host.append(this.figure);
  }

  // What the chart shows, for who cannot see it.
  describe(words) {
    this.plot.setAttribute("aria-label", `${this.title}: ${words}`);
  }

  // Whether there is anything to see.
  show(any, otherwise) {
    this.empty.hidden = any;
    this.empty.textContent = otherwise;
  }

  // The figures as a table, the newest first.
  tabulate(heads, times, columns) {
    this.rows = { heads, times, columns };
    if (!this.table.hidden) this.fill();
  }

  fill() {
    if (this.table.hidden) return;
    const { heads, times, columns } = this.rows;
    const head = element("tr", {}, ...["Time", ...heads].map((text, place) =>
      element("th", { scope: "col", className: place ? "n" : "", textContent: text })));
    const body = element("tbody");
    const filled = times.map((_, place) => place).filter((place) =>
      columns.some((column) => column[place] !== "–"));
    for (const place of filled.slice(-ROWS).reverse()) {
      body.append(element("tr", {},
        element("th", { scope: "row", textContent: timeOfDay(times[place]) }),
        ...columns.map((column) => element("td", { className: "n", textContent: column[place] }))));
    }
    const at = this.table.scrollTop;
    this.table.replaceChildren(element("table", {}, element("thead", {}, head), body));
    this.table.scrollTop = at;
  }
}
