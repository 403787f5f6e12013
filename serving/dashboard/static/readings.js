// Readings of the server's counters, and what lies between two of them.

const keyOf = (series) => `${series.family}\u0000${JSON.stringify(series.labels)}`;

// Each point of a chart covers so many seconds: percentiles of fewer requests say little.
export const WINDOW_SECONDS = 10;

export class Readings {
  constructor() {
    this.list = [];
    this.series = new Map();
    this.byFamily = new Map();
  }

  get newest() {
    return this.list.at(-1);
  }

  // Takes what /api/live said; keeps as long a history as the server does.
  add(document) {
    // A clock that was set back: what is kept does not go on.
    if (this.newest && document.now < this.newest.at) this.list = [];
    const keys = document.series.map(keyOf);
    document.series.forEach((series, place) => {
      if (this.series.has(keys[place])) return;
      const known = { ...series, key: keys[place] };
      this.series.set(known.key, known);
      const family = this.byFamily.get(series.family) ?? [];
      this.byFamily.set(series.family, [...family, known]);
    });
    for (const { at, values } of document.readings) {
      if (this.newest && at <= this.newest.at) continue;
      const pairs = values.map((value, place) => [keys[place], value]);
      this.list.push({ at, values: new Map(pairs.filter(([, value]) => value !== null)) });
    }
    const oldest = document.now - document.history_seconds;
    this.list = this.list.filter((reading) => reading.at >= oldest);
  }

  // The series of a family whose labels agree with those wanted.
  find(family, wanted = {}) {
    const asked = Object.entries(wanted).filter(([, value]) => value !== "");
    return (this.byFamily.get(family) ?? []).filter(({ labels, key }) =>
      this.newest?.values.has(key) && asked.every(([name, value]) => labels[name] === value));
  }

  // The values that a label has in a family.
  labelValues(family, label, wanted = {}) {
    return [...new Set(this.find(family, wanted).map(({ labels }) => labels[label]))];
  }

  // By reading: itself and the one that it is compared with, a window before.
  windows(from) {
    const pairs = [];
    let base = 0;
    this.list.forEach((reading, place) => {
      while (base + 1 < place && this.list[base + 1].at <= reading.at - WINDOW_SECONDS) base += 1;
      const before = place > base ? this.list[base] : null;
      // A gap in the history says nothing about its end.
      const known = before && reading.at - before.at < 3 * WINDOW_SECONDS;
      if (reading.at >= from) pairs.push({ at: reading.at, from: known ? before : null, to: reading });
    });
    return pairs;
  }

  // The same on a grid of slots that do not overlap, for bars and cells.
  slots(from, until) {
    const pairs = [];
    const first = Math.floor(from / WINDOW_SECONDS) * WINDOW_SECONDS;
    let place = 0;
    const upTo = (at) => {
      while (place + 1 < this.list.length && this.list[place + 1].at <= at) place += 1;
      return this.list[place]?.at <= at ? this.list[place] : null;
    };
    let before = upTo(first);
    for (let at = first; at + WINDOW_SECONDS <= until; at += WINDOW_SECONDS) {
      const to = upTo(at + WINDOW_SECONDS);
      const known = before && to && to.at - before.at > 0 && to.at - before.at < 3 * WINDOW_SECONDS;
      pairs.push({ at: at + WINDOW_SECONDS / 2, from: known ? before : null, to });
      before = to;
    }
    return pairs;
  }
}

// What to say where no pair of readings has anything to show.
export const nothingIn = (pairs) => (pairs.some(({ from }) => from)
  ? "No requests in this time"
  : `The first ${WINDOW_SECONDS} s are being counted`);

// A counter that is smaller than before began anew: all of it came since.
const growth = (now, before) => (now >= before ? now - before : now);

// What series counted between two readings, of all of them together.
export const counted = (series, { from, to }) => {
  if (!from) return null;
  let sum = 0;
  for (const { key } of series) sum += growth(to.values.get(key) ?? 0, from.values.get(key) ?? 0);
  return sum;
};

export const rate = (series, pair) => {
  const count = counted(series, pair);
  return count === null ? null : count / (pair.to.at - pair.from.at);
};

// The count and the sum of histograms between two readings.
export const observed = (series, { from, to }) => {
  if (!from) return { count: 0, sum: 0 };
  let count = 0, sum = 0;
  for (const { key } of series) {
    const now = to.values.get(key), before = from.values.get(key) ?? [0, 0];
    if (!now) continue;
    const anew = now[0] < before[0];
    count += now[0] - (anew ? 0 : before[0]);
    sum += now[1] - (anew ? 0 : before[1]);
  }
  return { count, sum };
};

// Series whose boundaries differ are put together on all of them.
export const distribution = (series, { from, to }) => {
  const counts = new Map();
  let total = 0;
  for (const { key, boundaries } of from ? series : []) {
    const now = to.values.get(key), before = from.values.get(key);
    if (!now) continue;
    const anew = !before || now[0] < before[0];
    [...boundaries, Infinity].forEach((upper, place) => {
      const count = now[place + 2] - (anew ? 0 : before[place + 2]);
      counts.set(upper, (counts.get(upper) ?? 0) + count);
      total += count;
    });
  }
  const uppers = [...counts.keys()].sort((a, b) => a - b);
  return { total, buckets: uppers.map((upper) => ({ upper, count: counts.get(upper) })) };
};

// As histogram_quantile of Prometheus: straight lines between boundaries.
export const quantile = ({ total, buckets }, share) => {
  if (!total) return null;
  const rank = share * total;
  let below = 0, lower = 0;
  for (const { upper, count } of buckets) {
    if (below + count >= rank && count) {
      return upper === Infinity ? lower : lower + (upper - lower) * (rank - below) / count;
    }
    below += count;
    lower = upper;
  }
  return lower;
};

// Gauges of a reading, of all series together.
export const gauge = (series, { to }, combine = (a, b) => a + b) => {
  const values = series.map(({ key }) => to?.values.get(key)).filter((value) => value !== undefined);
  return values.length ? values.reduce(combine) : null;
};
