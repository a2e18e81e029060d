// Numbers as people read them.

const MISSING = "–";

const metricNames = {
  accuracy: "accuracy", loss: "loss", client_accuracy_mean: "mean of clients", client_accuracy_worst: "worst client",
  client_accuracy_worst_tenth: "worst tenth of clients", client_accuracy_std: "spread over clients",
  client_accuracy_weighted: "clients, weighted", participant_accuracy: "participants only",
  last_iteration_accuracy: "last iteration only", worst_group_accuracy: "worst group",
  group_gap: "mean group − worst group", validation_accuracy: "validation accuracy", validation_loss: "validation loss", f1: "F1",
};
export const unitNames = {
  round: "rounds", client_trainings: "client trainings", bytes: "bytes sent", virtual_seconds: "virtual time",
  seconds: "time on this machine",
};

// Nobody counts further: what is larger is the loss of a model that has diverged.
const COUNTED = 1e12;

export const known = (value) => value !== null && value !== undefined && !Number.isNaN(value);
export const isShare = (metric) => /accuracy|precision|recall|^f1$|group_gap/.test(metric);
export const metricName = (metric) => metricNames[metric] || metric.replaceAll("_", " ");
// In the head of a narrow column of a table of runs.
export const shortMetricName = (metric) => metricName(metric).replace(" of clients", "");

export const titled = (text) => text.charAt(0).toUpperCase() + text.slice(1);

export function metricText(metric, value) {
  if (!known(value)) return MISSING;
  return isShare(metric) ? `${(100 * value).toFixed(1)} %` : number(value);
}

export function number(value, digits = 4) {
  if (!known(value)) return MISSING;
  if (typeof value !== "number") return String(value);
  if (Number.isInteger(value) && Math.abs(value) < COUNTED) return value.toLocaleString("en-GB");
  if (value !== 0 && (Math.abs(value) < 1e-3 || Math.abs(value) >= 1e6)) return value.toExponential(2);
  return value.toLocaleString("en-GB", { maximumSignificantDigits: digits });
}

export function bytes(value) {
  if (!known(value)) return MISSING;
  const units = ["B", "kB", "MB", "GB", "TB"];
  let place = 0;
  while (value >= 1000 && place < units.length - 1) { value /= 1000; place += 1; }
  return `${place ? value.toFixed(1) : Math.round(value)} ${units[place]}`;
}

export function duration(seconds) {
  if (!known(seconds)) return MISSING;
  if (seconds === 0) return "0 s";
  if (seconds < 0.9995) return `${Math.round(1000 * seconds)} ms`;
  if (seconds < 59.5) return `${seconds < 10 ? Number(seconds.toFixed(1)) : Math.round(seconds)} s`;
  if (seconds < 3599.5) return twoParts(Math.round(seconds), 60, "min", "s");
  if (seconds < 172800) return twoParts(Math.round(seconds / 60), 60, "h", "min");
  return `${Number((seconds / 86400).toFixed(1))} d`;
}

function twoParts(small, size, name, smallName) {
  return `${Math.floor(small / size)} ${name}${small % size ? ` ${small % size} ${smallName}` : ""}`;
}

// Steps between marks that people count in: of what is counted, there is no round 1.5; of time, minutes and hours.
const COUNTS = [...Array(10).keys()].flatMap((power) => [1, 2, 5].map((step) => step * 10 ** power));
const TIMES = [...[-3, -2, -1].flatMap((power) => [1, 2, 5].map((step) => step * 10 ** power)), 1, 2, 5, 10, 15, 30,
  ...[1, 2, 5, 10, 15, 30].map((step) => 60 * step), ...[1, 2, 3, 6, 12].map((step) => 3600 * step), ...COUNTS.map((step) => 86400 * step)];
export const stepsOf = (unit) => ({ round: COUNTS, client_trainings: COUNTS, virtual_seconds: TIMES, seconds: TIMES })[unit];

// Marks from one value to another, at most so many.
export function marksBetween(unit, from, to, most) {
  const step = stepsOf(unit).find((own) => (to - from) / own <= most) ?? to - from;
  const first = Math.ceil(from / step);
  return Array.from({ length: Math.max(0, Math.floor(to / step) - first + 1) }, (_, place) => (first + place) * step);
}

// A mark of an axis, where there is little room.
export const shortNumber = (value) => (Math.abs(value) < 1e5 ? number(value) : Number(value.toPrecision(4)).toExponential().replace("e+", "e"));

export const percentMark = (value) => `${number(Math.round(1000 * value) / 10)} %`;

export function moment(seconds) {
  if (!seconds) return MISSING;
  const date = new Date(1000 * seconds);
  const two = (value) => String(value).padStart(2, "0");
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())} ${two(date.getHours())}:${two(date.getMinutes())}`;
}

export function unitText(unit, value) {
  if (unit === "bytes") return bytes(value);
  if (unit === "virtual_seconds" || unit === "seconds") return duration(value);
  return number(value);
}
