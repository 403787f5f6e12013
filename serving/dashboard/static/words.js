// Figures with units and sensible precision, and times of day.

// Three digits, so that the values of a column stand below each other.
const digits = (value) => {
  if (value === 0) return "0";
  // Of the rounded value: 0.9996 is 1.00.
  const power = Math.floor(Math.log10(Math.abs(Number(value.toPrecision(3)))));
  const decimals = Math.min(6, Math.max(0, 2 - power));
  return value.toLocaleString("en", { maximumFractionDigits: decimals, minimumFractionDigits: decimals });
};
// A round value, as short as it can be: for axes.
export const short = (text) => text.replace(/(\.\d*?)0+(?!\d)/, "$1").replace(/\.(?!\d)/, "");
const known = (write) => (value) => (value == null || Number.isNaN(value) ? "–" : write(value));

export const number = known((value) =>
  (Number.isInteger(value) ? value.toLocaleString("en") : digits(value)));
export const whole = known((value) => Math.round(value).toLocaleString("en"));
// A count with its noun.
export const things = (count, noun) => `${whole(count)} ${noun}${Math.round(count) === 1 ? "" : "s"}`;
export const perSecond = known((value) => `${digits(value)}/s`);
export const percent = known((value) => `${digits(100 * value)}%`);
export const seconds = known((value) => {
  if (value === 0) return "0 s";
  if (value < 0.9995e-3) return `${digits(value * 1e6)} µs`;
  if (value < 0.9995) return `${digits(value * 1e3)} ms`;
  return `${digits(value)} s`;
});
export const bytes = known((value) => {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let power = 0;
  while (value >= 999.5 && power < units.length - 1) {
    value /= 1000;
    power += 1;
  }
  return `${digits(value)} ${units[power]}`;
});
export const age = known((value) => {
  if (value < 90) return `${Math.max(0, Math.round(value))} s`;
  if (value < 5400) return `${Math.round(value / 60)} min`;
  if (value < 129600) return `${Math.round(value / 3600)} h`;
  return `${Math.round(value / 86400)} days`;
});

const clock = new Intl.DateTimeFormat(undefined, {
  hour: "2-digit", minute: "2-digit", second: "2-digit", hourCycle: "h23",
});
const day = new Intl.DateTimeFormat(undefined, { dateStyle: "medium" });
export const timeOfDay = (at) => clock.format(at * 1000);
export const moment = (at) => {
  const today = day.format(Date.now()) === day.format(at * 1000);
  return today ? timeOfDay(at) : `${day.format(at * 1000)} ${timeOfDay(at)}`;
};
export const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
