// Coloured cells on a canvas, with a word for each: under the pointer, and under the arrow keys.

import { canvasFont, colour, h, rem } from "./dom.js";

// From this many cells on they are drawn as one picture, for which gaps between them would be too narrow.
const MANY = 20_000;

// options: columns, rows, colour(column, row, palette) -> css colour or null, say(column, row) -> text, more?, open(column, row)?, height?(width), label,
// columnTicks?(pixels) and rowTicks?(pixels) -> [[place in cells, text], …].
export class Cells {
  constructor(options) {
    this.options = options;
    this.at = null;
    this.left = this.below = 0;
    this.canvas = h("canvas", { tabindex: "0", role: "img" });
    this.mark = h("div", { class: "cell-mark", "aria-hidden": "true", hidden: true });
    this.words = h("p", { class: "cell-words", role: "status" }, options.hint || "");
    this.stage = h("div", { class: "stage" }, this.canvas, this.mark);
    this.box = h("div", { class: "cells" }, this.stage, this.words);
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("pointerleave", () => { this.mark.hidden = true; });
    this.canvas.addEventListener("click", (event) => { if (this.point(event)) this.options.open?.(...this.at); });
    this.canvas.addEventListener("keydown", (event) => this.key(event));
    this.watch = new ResizeObserver(() => this.paint());
    this.watch.observe(this.stage);
    this.redraw = () => this.paint();
    document.addEventListener("theme", this.redraw);
  }

  close() { this.watch.disconnect(); document.removeEventListener("theme", this.redraw); clearTimeout(this.timer); }

  set(options) {
    Object.assign(this.options, options);
    if (this.at) this.at = [Math.min(this.at[0], this.options.columns - 1), Math.min(this.at[1], this.options.rows - 1)];
    this.paint();
  }

  paint() {
    const { columns, rows, label } = this.options, width = this.stage.clientWidth;
    if (!width || !columns || !rows) return;
    this.canvas.setAttribute("aria-label", label);
    const high = this.options.height?.(width) ?? Math.round((rem() / 16) * Math.max(120, Math.min(560, rows * Math.max(3, Math.min(16, 420 / rows)))));
    const context = this.canvas.getContext("2d");
    context.font = canvasFont();
    const rowTicks = this.options.rowTicks?.(high) ?? [];
    this.left = rowTicks.length ? Math.ceil(Math.max(...rowTicks.map(([, text]) => context.measureText(text).width))) + 10 : 0;
    this.below = this.options.columnTicks ? Math.round(1.4 * rem()) : 0;
    const height = high + this.below, scale = window.devicePixelRatio || 1;
    Object.assign(this.canvas.style, { width: `${width}px`, height: `${height}px` });
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(height * scale);
    context.scale(scale, scale);
    this.paintTicks(context, rowTicks, width, high);
    context.setTransform(1, 0, 0, 1, Math.round(this.left * scale), 0);
    this.paintCells(context, Math.round((width - this.left) * scale), Math.round(high * scale));
  }

  paintTicks(context, rowTicks, width, high) {
    const { columns, rows } = this.options;
    context.font = canvasFont();
    context.fillStyle = colour("quiet");
    context.textAlign = "right";
    let free = 0; // the first name is moved down into the picture: there may be no room for the second
    for (const [place, text] of rowTicks) {
      const y = Math.max(10, ((place + 0.5) * high) / rows + 4);
      if (y < free) continue;
      context.fillText(text, this.left - 6, y);
      free = y + 0.7 * rem();
    }
    for (const [place, text] of this.options.columnTicks?.(width - this.left) ?? []) {
      const x = this.left + ((place + 0.5) * (width - this.left)) / columns, half = context.measureText(text).width / 2;
      context.textAlign = "center";
      context.fillText(text, Math.max(this.left + half, Math.min(width - half - 2, x)), high + rem());
    }
  }

  paintCells(context, width, height) {
    const { columns, rows } = this.options, chosen = this.options.palette?.();
    if (columns * rows > MANY) {
      const picture = new ImageData(columns, rows), known = new Map();
      for (let row = 0; row < rows; row += 1) for (let column = 0; column < columns; column += 1) {
        const fill = this.options.colour(column, row, chosen);
        if (!fill) continue;
        if (!known.has(fill)) known.set(fill, fill.match(/[\d.]+/g).map((part, place) => (place === 3 ? 255 * part : Number(part))));
        picture.data.set(known.get(fill), 4 * (row * columns + column));
      }
      const small = new OffscreenCanvas(columns, rows);
      small.getContext("2d").putImageData(picture, 0, 0);
      context.imageSmoothingEnabled = width < columns || height < rows;
      context.drawImage(small, 0, 0, width, height);
      return;
    }
    const wide = width / columns, high = height / rows, inset = wide > 6 && high > 6 ? 1 : 0;
    for (let row = 0; row < rows; row += 1) for (let column = 0; column < columns; column += 1) {
      const fill = this.options.colour(column, row, chosen);
      if (!fill) continue;
      context.fillStyle = fill;
      const x = Math.floor(column * wide), y = Math.floor(row * high);
      context.fillRect(x, y, Math.max(1, Math.floor((column + 1) * wide) - x - inset), Math.max(1, Math.floor((row + 1) * high) - y - inset));
    }
  }

  // Width and height of a cell on the page.
  size() {
    return [(this.canvas.clientWidth - this.left) / this.options.columns, (this.canvas.clientHeight - this.below) / this.options.rows];
  }

  point(event) {
    const place = this.canvas.getBoundingClientRect(), [wide, high] = this.size();
    const column = Math.floor((event.clientX - place.left - this.left) / wide), row = Math.floor((event.clientY - place.top) / high);
    const inside = column >= 0 && row >= 0 && column < this.options.columns && row < this.options.rows;
    if (inside) this.go(column, row);
    return inside;
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
    const [wide, high] = this.size();
    Object.assign(this.mark.style, { left: `${this.left + column * wide}px`, top: `${row * high}px`, width: `${Math.max(3, wide)}px`, height: `${Math.max(3, high)}px` });
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

const shades = new Map();

// From the ground to a colour, by a share between 0 and 1; in a hundred steps, so that few are ever made.
export function shade(css, share) {
  const step = Math.round(100 * Math.min(1, Math.max(0, share))), key = `${css}${step}`;
  if (!shades.has(key)) {
    const value = Number.parseInt(css.replace("#", ""), 16);
    shades.set(key, `rgba(${value >> 16}, ${(value >> 8) & 255}, ${value & 255}, ${(0.12 + 0.0088 * step).toFixed(2)})`);
  }
  return shades.get(key);
}

// Names of some of the rows or columns, as many as there is room for.
export function someTicks(count, name, pixels, room) {
  const each = Math.max(1, Math.ceil((count * room) / pixels));
  return Array.from({ length: Math.ceil(count / each) }, (_, place) => [place * each, name(place * each)]);
}
