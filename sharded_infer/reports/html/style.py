"""The base style of all pages, and the script that sorts their tables.

Each page appends its own style and script.
"""

BASE_STYLE = """
:root {
  color-scheme: light dark;
  --page: light-dark(#fff, #14171b); --ink: light-dark(#16191d, #e8ebee);
  --quiet: light-dark(#58616b, #a3acb6); --hair: light-dark(#dfe3e7, #30363d);
  --track: light-dark(#f2f4f6, #1d2126); --accent: light-dark(#16191d, #fff);
  --focus: light-dark(#0b57d0, #8ab4f8);
}
@media print { :root { color-scheme: light; font-size: 12px; } }
* { box-sizing: border-box; }
body {
  margin: 0 auto; max-width: 75rem; padding: 2.5rem 2rem 4rem; background: var(--page);
  color: var(--ink); font: 0.9375rem/1.5 system-ui, "Segoe UI", Roboto, Arial, sans-serif;
  font-variant-numeric: tabular-nums; -webkit-text-size-adjust: 100%;
}
h1, h2 { line-height: 1.2; margin: 0; font-weight: 650; overflow-wrap: anywhere; }
h1 { font-size: 1.75rem; letter-spacing: -0.015em; }
h2 { font-size: 1.1875rem; letter-spacing: -0.005em; }
p { margin: 0.25rem 0 0; }
b { font-weight: 650; white-space: nowrap; }
header > p { font-size: 1.0625rem; text-wrap: pretty; margin-top: 0.5rem; }
figcaption p, section > p, .quiet { color: var(--quiet); }
dl {
  display: grid; grid-template-columns: repeat(auto-fit, minmax(6.75rem, 1fr)); gap: 1rem 1.25rem;
  margin: 1.75rem 0 0; padding: 1rem 0; border-block: 1px solid var(--hair);
}
dt { color: var(--quiet); font-size: 0.8125rem; }
dd { margin: 0; font-size: 1.125rem; font-weight: 600; white-space: nowrap; }
.legend {
  display: flex; flex-wrap: wrap; gap: 0.375rem 1.25rem; margin: 1.75rem 0 0; padding: 0;
  list-style: none; font-size: 0.8125rem;
}
.legend li { display: flex; align-items: center; gap: 0.5rem; }
.legend i { width: 1.125rem; height: 1.125rem; }
figure, section { margin: 2.25rem 0 0; }
figcaption {
  display: grid; grid-template-columns: 1fr auto; align-items: end; margin-bottom: 0.5rem;
}
figcaption > * { grid-column: 1; }

/* Tables */
.scroll { overflow-x: auto; margin-top: 0.75rem; }
table { border-collapse: collapse; width: 100%; font-size: 0.875rem; }
th, td { padding: 0.375rem 1.5rem 0.375rem 0; text-align: left; vertical-align: top; }
th:last-child, td:last-child { padding-right: 0; }
tbody th { font-weight: inherit; }
thead th { border-bottom: 1px solid var(--ink); white-space: nowrap; vertical-align: bottom; }
tbody tr { border-bottom: 1px solid var(--hair); break-inside: avoid; }
.n { text-align: right; }
.text { width: 70%; }
.n, .keep { white-space: nowrap; }
th.n:first-child, td.n:first-child { width: 3.25rem; }
.name {
  font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: 0.8125rem; min-width: 9rem; overflow-wrap: anywhere;
}
th button {
  all: unset; cursor: pointer; font-size: 0.8125rem; font-weight: 600; color: var(--quiet);
}
th button::after {
  content: "\\2195"; display: inline-block; width: 1em; text-align: right; opacity: 0.45;
}
[aria-sort] button { color: var(--ink); }
[aria-sort="ascending"] button::after { content: "\\2191"; opacity: 1; }
[aria-sort="descending"] button::after { content: "\\2193"; opacity: 1; }
summary { cursor: pointer; overflow-wrap: anywhere; }
details { overflow-wrap: anywhere; }
[open] summary span { display: none; }
:is(th button, summary, .scroll, input):focus-visible {
  outline: 2px solid var(--focus); outline-offset: 2px;
}

@media (max-width: 40rem) {
  body { padding: 1.5rem 1rem 3rem; }
  h1 { font-size: 1.5rem; }
  dl { grid-template-columns: repeat(3, 1fr); gap: 0.75rem; }
  dd { font-size: 1rem; }
  figcaption { grid-template-columns: 1fr; }
  th, td { padding-right: 0.875rem; }
  td.name { min-width: 5.5rem; }
}
@media print {
  body { max-width: none; padding: 0; }
  .legend i { print-color-adjust: exact; }
  figure, tr { break-inside: avoid; }
  .scroll { overflow: visible; }
  th button::after { display: none; }
  h2 { break-after: avoid; }
}
"""

SORT_SCRIPT = """
const order = new Intl.Collator("en", { numeric: true });
document.querySelectorAll("th button").forEach((button) => button.addEventListener("click", () => {
  const head = button.parentNode, body = head.closest("table").tBodies[0];
  const was = head.getAttribute("aria-sort");
  // Numbers begin with the largest.
  const up = was ? was === "descending" : !head.classList.contains("n");
  for (const other of head.parentNode.cells) other.removeAttribute("aria-sort");
  head.setAttribute("aria-sort", up ? "ascending" : "descending");
  const key = (row) => row.cells[head.cellIndex].dataset.v ?? row.cells[head.cellIndex].textContent;
  const compare = (a, b) => (isNaN(a) || isNaN(b) ? order.compare(a, b) : a - b);
  const rows = [...body.rows].sort((a, b) => compare(key(a), key(b)) * (up ? 1 : -1));
  body.append(...rows);
}));
"""
