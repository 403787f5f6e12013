"""The style and script of a quantization's page.

Row formats with fewer bits have warmer and stronger colours. Colours also differ in lightness, for
colour-blind readers, and never carry information alone.
"""

STYLE = """
:root {
  --fp32: #9aa3ad; --fp16: #2f7f76; --bf16: #74b5a9; --fp8: #7a6cc4; --int8: #2b69ab;
  --int4: #cb7c05; --int2: #8a2c58; --line: #c9cfd6;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --fp32: #87919b; --fp16: #43a093; --bf16: #93d2c6; --fp8: #a094e8; --int8: #5b9bdb;
    --int4: #f0b03c; --int2: #d26a9d; --line: #424a53;
  }
}
.fp32 { --paint: var(--fp32); } .fp16 { --paint: var(--fp16); } .bf16 { --paint: var(--bf16); }
.fp8 { --paint: var(--fp8); } .int8 { --paint: var(--int8); } .int4 { --paint: var(--int4); }
.int2 { --paint: var(--int2); }
h3 { margin: 1.75rem 0 0; font-size: 0.9375rem; font-weight: 650; line-height: 1.3; }
h3 + p { color: var(--quiet); }
.legend i { background: var(--paint); }
.chart i {
  display: inline-block; width: 0.625rem; height: 0.625rem; margin-right: 0.4rem;
  background: var(--paint); print-color-adjust: exact;
}

/* Rows of a chart stand close, so that their drawings read as one. */
.chart th, .chart td { padding-block: 0; line-height: 1.5rem; vertical-align: middle; }
.chart thead th {
  padding-bottom: 0.25rem; border-bottom: 0; font-size: 0.8125rem; font-weight: 400;
  color: var(--quiet);
}
.chart tbody tr { border: 0; }
.chart .name { width: 1px; min-width: 0; white-space: nowrap; }
.chart .keep { width: 1px; font-size: 0.8125rem; }
.chart .n { width: 1px; padding-right: 0; padding-left: 1.25rem; }
.chart .drawn { min-width: 12rem; padding-right: 0.25rem; }
.chart .more { color: var(--quiet); white-space: nowrap; }
.all .name { min-width: 11rem; }
.all .text { width: auto; min-width: 16rem; }
svg { display: block; width: 100%; overflow: visible; }
svg text { fill: var(--quiet); font-size: 12px; text-anchor: middle; }
.bar { height: 0.875rem; }
.dots { height: 1.5rem; }
.axis { height: 1.25rem; }
.tall .bar { height: 1.25rem; }
.tall td, .tall th { line-height: 1.875rem; }
rect, circle { fill: var(--paint); }
.outline { fill: var(--track); stroke: var(--line); stroke-width: 1px; }
.grid, .reach, .base, .ticks { stroke: var(--hair); stroke-width: 1px; fill: none; }
.grid.zero, .base { stroke: var(--quiet); }
.reach { stroke: var(--quiet); }
circle.hollow { fill: var(--page); stroke: var(--paint); stroke-width: 1.5px; }
circle.marked { stroke: var(--page); stroke-width: 1.5px; }
.ticks { stroke: var(--paint); vector-effect: non-scaling-stroke; opacity: 0.55; }

.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(24rem, 1fr)); gap: 2rem; }
.pair figure { margin-top: 1.25rem; min-width: 0; }
.pair figcaption { display: block; }
.pair h3 { margin: 0; }
.pair figcaption p { margin: 0; font-size: 0.8125rem; }
.scatter { max-width: 40rem; }
.scatter circle { --paint: var(--page); stroke: var(--ink); stroke-width: 1.5px; }
.scatter circle.marked { fill: var(--int8); stroke: var(--int8); }
.scatter .reach.marked { stroke: var(--int8); stroke-width: 2px; }
.scatter .up { text-anchor: end; }
.scatter .label {
  text-anchor: start; fill: var(--ink); paint-order: stroke; stroke: var(--page); stroke-width: 4px;
}
.scatter .label.marked { font-weight: 650; fill: var(--int8); }

.multiples {
  display: grid; grid-template-columns: repeat(auto-fill, minmax(14.5rem, 1fr));
  gap: 1.75rem 2.25rem; margin-top: 1rem;
}
.multiples:has(> :only-child) { grid-template-columns: minmax(0, 30rem); }
.multiple { margin: 0; min-width: 0; break-inside: avoid; }
.multiple figcaption { grid-template-columns: 1fr auto; margin: 0 0 0.25rem; gap: 0.5rem; }
.multiple figcaption > * { grid-column: auto; font-size: 0.8125rem; }
.multiple figcaption > :last-child { color: var(--quiet); }
.multiple .name { min-width: 0; white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }
.multiple p { margin: 0.25rem 0 0; color: var(--quiet); font-size: 0.8125rem; line-height: 1.35; }
.heap { height: 3.5rem; border-bottom: 1px solid var(--quiet); }
.heap path { fill: var(--paint); }
.multiple .axis { margin-top: 0.125rem; }
.multiple .axis text { font-size: 11px; }

.find { display: flex; align-items: baseline; gap: 0.5rem; margin-top: 0.75rem; }
.find[hidden] { display: none; }
.find input {
  width: min(20rem, 100%); padding: 0.25rem 0.5rem; font: inherit; font-size: 0.875rem;
  color: inherit; background: var(--page); border: 1px solid var(--quiet); border-radius: 4px;
}
.find output { color: var(--quiet); font-size: 0.875rem; white-space: nowrap; }
@media (max-width: 40rem) {
  .chart .drawn { min-width: 6rem; }
  .chart .name { max-width: 8rem; overflow: hidden; text-overflow: ellipsis; }
  .pair { grid-template-columns: minmax(0, 1fr); }
  .scatter text { font-size: 15px; }
}
@media print {
  .find { display: none; }
  .pair { grid-template-columns: 1fr 1fr; }
  h3 { break-after: avoid; }
}
"""

FIND_SCRIPT = """
const find = document.querySelector(".find");
if (find) {
  const rows = [...document.querySelectorAll(".all tbody tr")];
  const texts = rows.map((row) => row.textContent.toLowerCase());
  const input = find.querySelector("input"), told = find.querySelector("output");
  input.addEventListener("input", () => {
    const words = input.value.toLowerCase().split(/\\s+/).filter(Boolean);
    let left = 0;
    rows.forEach((row, index) => {
      row.hidden = !words.every((word) => texts[index].includes(word));
      left += !row.hidden;
    });
    const of = rows.length.toLocaleString("en");
    told.textContent = words.length ? `${left.toLocaleString("en")} of ${of}` : "";
  });
  find.hidden = false;
}
"""
