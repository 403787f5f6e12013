"""The style and script of a plan's page.

Colours also differ in lightness, for colour-blind readers, and never carry information alone.
"""

DRAWING_STYLE = """
:root {
  --w: light-dark(#2b69ab, #5b9bdb); --on-w: light-dark(#fff, #0d1014);
  --c: light-dark(#cb7c05, #f0b03c); --on-c: light-dark(#16191d, #0d1014);
  --r: light-dark(#8a2c58, #c65c90); --on-r: light-dark(#fff, #0d1014);
  --e: light-dark(#818b96, #b9c1ca); --on-e: light-dark(#111418, #0d1014);
  --m: light-dark(#c4cad1, #56606a); --on-m: light-dark(#16191d, #f2f4f6);
  --f: light-dark(#fff, #14171b);
}
.zoom {
  grid-column: 2; grid-row: 2; display: flex; align-items: center; gap: 0.4rem;
  font-size: 0.8125rem;
}
.zoom input { accent-color: var(--accent); margin: 0; }


/* Bars */
.drawing { --name: 2.25rem; --value: 4.75rem; --height: 1.75rem; --gap: 0.375rem; }
.drawing.slim { --height: 1rem; --gap: 0.125rem; }
.slim .bar i { font-size: 0.625rem; }
.drawing ol { list-style: none; margin: 0; padding: 0; }
.drawing li {
  display: grid; grid-template-columns: var(--name) 1fr var(--value); align-items: center;
  padding-block: calc(var(--gap) / 2); break-inside: avoid;
}
.rank, .value { font-size: 0.8125rem; line-height: 1; color: var(--quiet); }
.value { text-align: right; color: var(--ink); white-space: nowrap; }
.bar { height: var(--height); overflow: clip; overflow-clip-margin: 3px; }
.fill { display: flex; position: relative; height: 100%; width: 100%; }
.bar i, .legend i {
  position: relative; display: block; flex: none; overflow: hidden; font-style: normal;
  font-size: 0.75rem; line-height: var(--height); white-space: nowrap;
  box-shadow: inset -1px 0 var(--page);
}
i.l { container-type: inline-size; }
.l span { display: block; padding: 0 0.4rem; overflow: hidden; text-overflow: ellipsis; }
/* A number needs little room, a name more: without it, nothing is shown. */
@container (max-width: 0.9rem) { .l span { display: none; } }
@container (max-width: 1.6rem) { .l span { padding: 0 0 0 0.2rem; } }
@container (max-width: 3.4rem) { .l em { display: none; } }
@container (max-width: 4.2rem) { .hot em { display: none; } }
@container (max-width: 5rem) { .long em { display: none; } }
.w { background: var(--w); color: var(--on-w); }
.c { background: var(--c); color: var(--on-c); }
.r { background: var(--r); color: var(--on-r); }
.e { background: var(--e); color: var(--on-e); }
.m { background: var(--m); color: var(--on-m); }
.bar .f, .legend .f {
  background: var(--f); box-shadow: inset 0 0 0 1px var(--e), inset -2px 0 var(--page);
}
.hot::after {
  content: ""; position: absolute; inset: 0 1px auto 0; height: 3px; background: var(--accent);
}
.l em { font-style: normal; }
.hot b { font-weight: 750; margin-right: 0.375em; }
.legend .hot { line-height: 1.3; text-align: center; }
.legend .hot b { margin: 0; font-size: 0.6875rem; line-height: 1.4rem; display: block; }
.bar i:focus, .bar i.on { outline: 2px solid var(--accent); outline-offset: 1px; z-index: 3; }
.bar s { position: absolute; inset-block: calc(var(--gap) / -2); pointer-events: none; }
.bar s.line {
  width: 2px; margin-left: -1px; background: var(--accent); z-index: 2;
  box-shadow: 0 0 0 1px var(--page);
}
.bar s.room { left: 0; inset-block: 0; background: var(--track); }
.mark, .axis {
  position: relative; height: 1.125rem; margin: 0 var(--value) 0 var(--name); font-size: 0.75rem;
  line-height: 1.125rem; white-space: nowrap;
}
.mark { font-weight: 600; }
.mark span, .axis span { position: absolute; }
.axis {
  height: 1.5rem; margin-top: 0.25rem; border-top: 1px solid var(--hair); color: var(--quiet);
}
.axis span { transform: translateX(-50%); padding-top: 0.25rem; }
.axis span::before {
  content: ""; position: absolute; left: 50%; top: 0; height: 0.25rem;
  border-left: 1px solid var(--quiet);
}
.near, .drawing:has(:checked) .full { display: none; }
.drawing:has(:checked) .mark span { left: auto !important; right: 0 !important; }
.drawing:has(:checked) .mark span::after { content: ", beyond this scale"; }
.drawing:has(:checked) .near { display: block; }
.drawing:has(:checked) .room { max-width: calc(100% / var(--zoom)); }
.drawing:has(:checked) .fill { width: calc(100% * var(--zoom)); }


#tip {
  position: fixed; z-index: 9; max-width: min(24rem, calc(100vw - 1rem)); padding: 0.5rem 0.75rem;
  background: var(--page); color: var(--ink); border: 1px solid var(--ink); border-radius: 4px;
  font-size: 0.8125rem; line-height: 1.45; white-space: pre-line; overflow-wrap: anywhere;
  pointer-events: none;
}
#tip::first-line { font-weight: 650; }
@media (prefers-reduced-motion: no-preference) {
  .drawing .fill { transition: width 0.2s; }
}
@media (max-width: 40rem) {
  .zoom { grid-column: 1; grid-row: auto; margin-top: 0.5rem; }
  .drawing { --name: 1.75rem; --value: 4.25rem; }
  .rank, .value { font-size: 0.75rem; }
  .bar i:not(.l) { box-shadow: none; }
}
@media print {
  .bar i, .hot::after, .bar s { print-color-adjust: exact; }
  figure.slim { break-inside: auto; }
  .zoom, #tip { display: none; }
}
"""

TIP_SCRIPT = """
const tip = document.getElementById("tip");
const parts = (selector) => document.querySelectorAll(".bar " + selector);
const hide = () => { tip.hidden = true; parts("i.on").forEach((p) => p.classList.remove("on")); };
const show = (part) => {
  hide();
  tip.textContent = part.getAttribute("aria-label");
  tip.hidden = false;
  // All parts of a table are marked together.
  if (part.dataset.t) parts(`i[data-t="${part.dataset.t}"]`).forEach((p) => p.classList.add("on"));
  else part.classList.add("on");
  const at = part.getBoundingClientRect(), bar = part.closest(".bar").getBoundingClientRect();
  const middle = (Math.max(at.left, bar.left) + Math.min(at.right, bar.right)) / 2;
  const last = document.documentElement.clientWidth - tip.offsetWidth - 8;
  tip.style.left = Math.max(8, Math.min(last, middle - tip.offsetWidth / 2)) + "px";
  const above = at.top - tip.offsetHeight - 8;
  tip.style.top = (above < 8 ? at.bottom + 8 : above) + "px";
};
const partOf = (event) => event.target.closest(".bar i");
for (const kind of ["pointerover", "focusin"])
  document.addEventListener(kind, (e) => (partOf(e) ? show(partOf(e)) : hide()));
document.addEventListener("focusout", hide);
// A part that the keyboard reached may scroll into view.
document.addEventListener("scroll", () => {
  const part = document.activeElement.closest(".bar i");
  if (part) show(part); else hide();
});
const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: 0, ArrowUp: 0, Home: 0, End: 0 };
document.addEventListener("keydown", (e) => {
  if (e.key === "Escape") hide();
  const part = partOf(e);
  if (!part || !(e.key in steps)) return;
  e.preventDefault();
  const row = part.closest("li"), own = [...row.querySelectorAll(".bar i")];
  let to = own[own.indexOf(part) + steps[e.key]];
  if (e.key === "Home") to = own[0];
  if (e.key === "End") to = own.at(-1);
  if (e.key === "ArrowDown") to = row.nextElementSibling?.querySelector(".bar i");
  if (e.key === "ArrowUp") to = row.previousElementSibling?.querySelector(".bar i");
  if (to) { part.tabIndex = -1; to.tabIndex = 0; to.focus(); }
});
"""
