// Curves, with uPlot: colours of the one palette, both themes, sizes that follow their box.

import uPlot from "./vendor/uplot.js";
import { canvasFont, colour, h, isDark, rem } from "./dom.js";
import { number, shortNumber, stepsOf, unitNames, unitText } from "./format.js";

// As many as do not divide the eight colours: lines of like colours have unlike dashes.
const DASHES = [[], [8, 4], [8, 3, 2, 3], [2, 3], [14, 3, 2, 3, 2, 3]];

// Numbers that are short on an axis; bytes and times need more room.
const COUNTED = ["round", "client_trainings"];
// uPlot's own steps end at 10¹⁵, and a model that has diverged has a loss beyond: without a step there are no marks.
const HEIGHTS = Array.from({ length: 330 }, (_, place) => place - 16).flatMap((power) => [1, 2, 2.5, 5].map((step) => Number(`${step}e${power}`)));

// lines: {name, values, low?, high?, place?, colours?}; x: numbers that all lines share. `colours` are for light and for dark ground. Redrawn when the theme changes.
// text(value) is for reading, mark(value) for the axis; extent() tells from where to where x goes, if not over what is there.
export class Chart {
  constructor({ label, height = 300, unit = "round", text = number, mark = shortNumber, extent = null, onzoom = null }) {
    Object.assign(this, { label, height, unit, text, mark, extent, onzoom, lines: [], x: [] });
    this.inside = h("div", { class: "chart-inside" });
    this.box = h("figure", { class: "chart", role: "img" }, this.inside);
    this.watch = new ResizeObserver(() => this.resize());
    this.watch.observe(this.box);
    this.redraw = () => this.draw();
    document.addEventListener("theme", this.redraw);
  }

  close() {
    this.watch.disconnect();
    document.removeEventListener("theme", this.redraw);
    this.plot?.destroy();
  }

  set(x, lines, unit = this.unit) {
    const same = this.plot && unit === this.unit && lines.length === this.lines.length && lines.every((line, place) => line.name === this.lines[place].name);
    Object.assign(this, { x, lines, unit });
    const ends = lines.map((line) => `${line.name} ${this.told(line.values, x.length - 1)}`).join("; ");
    this.box.setAttribute("aria-label", `${this.label} over ${unitNames[unit] || unit}. At the end: ${ends}.`);
    if (same) { this.plot.setData(this.data()); this.showEnd(); }
    else this.draw();
  }

  // While nobody points at a round, the legend tells the end.
  showEnd() {
    if (this.plot && this.plot.cursor.idx == null && this.x.length) this.plot.setLegend({ idx: this.x.length - 1 }, false);
  }

  // The value at a place, or the one before it: lines are not measured at the same places. Of a line that has ended, where.
  told(values, at) {
    const own = lastPlace(values, at), ended = own >= 0 && own < at && lastPlace(values) === own;
    return ended ? `${this.text(values[own])} (last at ${unitText(this.unit, this.x[own])})` : this.text(values[own] ?? null);
  }

  data() {
    const columns = [this.x];
    for (const line of this.lines) {
      columns.push(line.values);
      if (line.low) columns.push(line.low, line.high);
    }
    return columns;
  }

  draw() {
    if (!this.box.isConnected || !this.lines.length) return;
    const hidden = new Set(this.plot ? this.plot.series.filter((series) => series.label && !series.show).map((series) => series.label) : []);
    this.plot?.destroy();
    const series = [{ label: unitNames[this.unit] || this.unit, value: (_, value) => (value === null ? "–" : unitText(this.unit, value)) }];
    const bands = [];
    this.lines.forEach((line, place) => {
      const stroke = line.colours?.[Number(isDark())] ?? colour(`c${(line.place ?? place) % 8}`);
      series.push({
        label: line.name, stroke, width: 2, dash: DASHES[(line.place ?? place) % DASHES.length], spanGaps: true, show: !hidden.has(line.name),
        points: { show: this.x.length < 40, size: 5 }, value: (_, value, __, at) => this.told(this.lines[place].values, at),
      });
      if (line.low) {
        const clear = { stroke: "transparent", width: 0, spanGaps: true, points: { show: false }, show: !hidden.has(line.name) };
        series.push({ ...clear, label: `${line.name} lowest`, class: "unseen-series" }, { ...clear, label: `${line.name} highest`, class: "unseen-series" });
        bands.push({ series: [series.length - 1, series.length - 2], fill: `${stroke}28` });
      }
    });
    const line = { stroke: colour("line"), width: 1 }, axis = { stroke: colour("quiet"), grid: line, ticks: line, font: canvasFont(), labelFont: canvasFont() };
    const steps = stepsOf(this.unit);
    this.plot = new uPlot({
      width: this.width(), height: this.high(), series, bands,
      scales: { x: { time: false, ...(this.extent ? { range: this.extent } : {}) } },
      axes: [
        { ...axis, values: (_, values) => values.map((value) => unitText(this.unit, value)), space: (COUNTED.includes(this.unit) ? 3 : 5) * rem(), size: 2.25 * rem(), label: unitNames[this.unit], labelSize: 1.25 * rem(), ...(steps ? { incrs: steps } : {}) },
        { ...axis, size: 3.75 * rem(), incrs: HEIGHTS, values: (_, values) => values.map((value) => this.mark(value)) },
      ],
      legend: { live: true },
      cursor: { drag: { x: true, y: false }, points: { size: 7 } },
      hooks: this.onzoom ? { setSelect: [(plot) => {
        if (plot.select.width > 4) this.onzoom(plot.posToVal(plot.select.left, "x"), plot.posToVal(plot.select.left + plot.select.width, "x"));
      }] } : {},
    }, this.data(), this.inside);
    this.plot.over.addEventListener("mouseleave", () => setTimeout(() => this.showEnd(), 50));
    setTimeout(() => this.showEnd()); // uPlot draws when the script is through, and empties its legend then
  }

  // Heights are for letters of 16 pixels.
  high() { return Math.round((this.height / 16) * rem()); }

  width() { return Math.max(240, Math.floor(this.box.clientWidth)); }

  resize() {
    if (!this.plot) this.draw();
    else if (this.plot.width !== this.width()) this.plot.setSize({ width: this.width(), height: this.high() });
  }
}

function lastPlace(values, at = values.length - 1) {
  for (let place = at ?? -1; place >= 0; place -= 1) if (values[place] !== null && values[place] !== undefined) return place;
  return -1;
}

// Lines of their own x, brought onto the x of all.
export function together(lines) {
  const all = [...new Set(lines.flatMap((line) => line.x))].sort((a, b) => a - b);
  const place = new Map(all.map((value, at) => [value, at]));
  const spread = (x, values) => {
    const row = new Array(all.length).fill(null);
    x.forEach((value, at) => { row[place.get(value)] = values[at]; });
    return row;
  };
  return [all, lines.map(({ x, values, low, high, ...line }) => ({
    ...line, values: spread(x, values), ...(low ? { low: spread(x, low), high: spread(x, high) } : {}),
  }))];
}
