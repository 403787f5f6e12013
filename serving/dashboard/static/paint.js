// The page's colours, as a canvas needs them: the style sheet knows them as properties.

const probe = document.createElement("i");
probe.hidden = true;
let known = new Map();

export const paint = (name) => {
  if (!known.has(name)) {
    if (!probe.isConnected) document.body.append(probe);
    probe.style.color = `var(${name})`;
    known.set(name, getComputedStyle(probe).color);
  }
  return known.get(name);
};

export const FONT = '11px system-ui, "Segoe UI", Roboto, Arial, sans-serif';

// Colours differ in lightness too, and lines in their dashes: nothing is told by colour alone.
export const LINES = ["--l1", "--l2", "--l3", "--l4", "--l5", "--l6"];
export const DASHES = [[], [6, 3], [2, 3], [9, 3, 2, 3], [4, 2], [1, 2]];

document.addEventListener("themechange", () => {
  known = new Map();
});
