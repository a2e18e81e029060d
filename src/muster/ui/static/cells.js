// Coloured cells on a canvas, with a word for each: under the pointer, and under the arrow keys.

import { h } from "./dom.js";

// options: columns, rows, colour(column, row) -> css colour or null, say(column, row) -> text, open(column, row)?, height, label.
export class Cells {
  constructor(options) {
    this.options = options;
    this.at = null;
    this.canvas = h("canvas", { tabindex: "0", role: "img" });
    this.mark = h("div", { class: "cell-mark", "aria-hidden": "true", hidden: true });
    this.words = h("p", { class: "cell-words", role: "status" }, options.hint || "");
    this.stage = h("div", { class: "stage" }, this.canvas, this.mark);
    this.box = h("div", { class: "cells" }, this.stage, this.words);
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => { this.mark.hidden = true; });
    this.canvas.addEventListener("click", (event) => { this.point(event); if (this.at) this.options.open?.(...this.at); });
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.watch = new ResizeObserver(() => this.paint());
    this.watch.observe(this.stage);
    this.redraw = () => this.paint();
    document.addEventListener("theme", this.redraw);
  }

  close() { this.watch.disconnect(); document.removeEventListener("theme", this.redraw); }

  set(options) {
    Object.assign(this.options, options);
    if (this.at) this.at = [Math.min(this.at[0], this.options.columns - 1), Math.min(this.at[1], this.options.rows - 1)];
    this.paint();
  }

  paint() {
    const { columns, rows, label } = this.options;
    const width = this.stage.clientWidth;
    if (!width || !columns || !rows) return;
    this.canvas.setAttribute("aria-label", label);
    const height = this.options.height ?? Math.max(120, Math.min(560, Math.round(rows * Math.max(3, Math.min(16, 420 / rows)))));
    const scale = window.devicePixelRatio || 1;
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(height * scale);
    const context = this.canvas.getContext("2d");
    const wide = this.canvas.width / columns, high = this.canvas.height / rows;
    const inset = wide > 6 && high > 6 ? 1 : 0;
    const chosen = this.options.palette ? this.options.palette() : null;
    let last = null;
    for (let row = 0; row < rows; row += 1) for (let column = 0; column < columns; column += 1) {
      const fill = this.options.colour(column, row, chosen);
      if (!fill) continue;
      if (fill !== last) { context.fillStyle = fill; last = fill; }
      const x = Math.floor(column * wide), y = Math.floor(row * high);
      context.fillRect(x, y, Math.max(1, Math.floor((column + 1) * wide) - x - inset), Math.max(1, Math.floor((row + 1) * high) - y - inset));
    }
  }

  point(event) {
    const place = this.canvas.getBoundingClientRect(), { columns, rows } = this.options;
    const column = Math.floor(((event.clientX - place.left) / place.width) * columns);
    const row = Math.floor(((event.clientY - place.top) / place.height) * rows);
    if (column >= 0 && row >= 0 && column < columns && row < rows) this.go(column, row);
  }

  key(event) {
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    if (event.key === "Enter" && this.at) { this.options.open?.(...this.at); return; }
    if (!moves[event.key]) return;
    event.preventDefault();
    const [column, row] = this.at || [0, 0], [x, y] = this.at ? moves[event.key] : [0, 0];
    this.go(Math.max(0, Math.min(this.options.columns - 1, column + x)), Math.max(0, Math.min(this.options.rows - 1, row + y)));
  }

  go(column, row) {
    this.mark.hidden = false;
    const same = this.at && this.at[0] === column && this.at[1] === row;
    this.at = [column, row];
    const wide = this.canvas.clientWidth / this.options.columns, high = this.canvas.clientHeight / this.options.rows;
    Object.assign(this.mark.style, { left: `${column * wide}px`, top: `${row * high}px`, width: `${Math.max(3, wide)}px`, height: `${Math.max(3, high)}px` });
    if (same) return;
    this.words.textContent = this.options.say(column, row);
    if (!this.options.more) return;
    clearTimeout(this.timer);
    this.timer = setTimeout(async () => {
      const text = await this.options.more(column, row).catch(() => null);
      if (text && this.at[0] === column && this.at[1] === row) this.words.textContent = text;
    }, 120);
  }
}

// From the ground to a colour, by a share between 0 and 1.
export function shade(css, share) {
  const value = Number.parseInt(css.replace("#", ""), 16);
  return `rgba(${value >> 16}, ${(value >> 8) & 255}, ${value & 255}, ${(0.12 + 0.88 * Math.min(1, Math.max(0, share))).toFixed(2)})`;
}
