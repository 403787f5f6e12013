// Moments at which a name came to mean another version, or a version failed, across all charts.

import { FONT, paint } from "./paint.js";

// What happened to models within a time, as lines with a short word.
export const marksOf = (swaps, model, from) => {
  const marks = new Map();
  for (const { at, event, name, version, previous, ...swap } of swaps) {
    const moved = event === "named" && name === "default" && previous;
    if (at < from || (model && swap.model !== model) || !(moved || event === "failed")) continue;
    marks.set(`${at} ${event}`, { at, word: moved ? `v${version}` : `v${version} failed`, bad: !moved });
  }
  return [...marks.values()];
};

export const drawMarks = (pen, marks, { x, top, bottom, scale }) => {
  pen.save();
  pen.font = FONT.replace("11px", `${10 * scale}px`);
  pen.textAlign = "right";
  pen.textBaseline = "top";
  pen.lineWidth = scale;
  marks.forEach(({ at, word, bad }, place) => {
    pen.strokeStyle = pen.fillStyle = paint(bad ? "--bad" : "--ink");
    pen.setLineDash([3 * scale, 3 * scale]);
    pen.beginPath();
    pen.moveTo(x(at), top);
    pen.lineTo(x(at), bottom);
    pen.stroke();
    // Words of neighbours stand below each other.
    pen.fillText(word, x(at) - 3 * scale, top + (place % 2) * 12 * scale);
  });
  pen.restore();
};
