// A table of any length: only the rows that can be seen exist.

import { h, replace } from "./dom.js";

const HEIGHT = 38;
const BEYOND = 8;

// columns: {key, title, number, text(row), cell(row)?, value(row), width}; rows: rows or {group, ...}. Widths are for letters of 16 pixels.
export class Grid {
  constructor({ label, kind, onsort, onrow }) {
    Object.assign(this, { onsort, onrow, columns: [], rows: [], lines: [], first: 0, last: 0, sort: { key: "", down: false } });
    this.head = h("thead", {});
    this.above = h("tr", { "aria-hidden": "true", class: "gap" });
    this.under = h("tr", { "aria-hidden": "true", class: "gap" });
    this.body = h("tbody", {}, this.above, this.under);
    this.table = h("table", { "aria-label": label }, this.head, this.body);
    this.box = h("div", { class: `grid ${kind}`, tabindex: "0", role: "region", "aria-label": label }, this.table);
    this.box.addEventListener("scroll", () => this.paint(), { passive: true });
    this.watch = new ResizeObserver(() => this.paint(true));
    this.watch.observe(this.box);
  }

  close() { this.watch.disconnect(); }

  setColumns(columns) {
    this.columns = columns;
    this.table.style.minWidth = `${columns.reduce((sum, column) => sum + column.width, 0) / 16}rem`;
    this.paintHead();
    this.paint(true);
  }

  setSort(key, down) { this.sort = { key, down }; this.paintHead(); }

  setRows(rows) { this.rows = rows; this.paint(true); }

  paintHead() {
    const focused = this.head.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    replace(this.head, h("tr", {}, this.columns.map((column) => {
      const own = this.sort.key === column.key;
      const cell = h("th", {
        scope: "col", class: column.number ? "number" : null,
        "aria-sort": own ? (this.sort.down ? "descending" : "ascending") : null,
      }, column.plain ? column.title : h("button", {
        type: "button", class: "sort", "data-key": column.key, onclick: () => this.onsort(column.key),
      }, column.title, h("span", { "aria-hidden": "true" }, own ? (this.sort.down ? " ▾" : " ▴") : "")));
      cell.style.width = `${column.width / 16}rem`;
      return cell;
    })));
    if (focused) this.head.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
  }

  // Rows that stay in sight stay as they are; with `force` all are made anew.
  paint(force = false) {
    const room = this.box.clientHeight || 600;
    const first = Math.max(0, Math.floor(this.box.scrollTop / HEIGHT) - BEYOND);
    const last = Math.min(this.rows.length, Math.ceil((this.box.scrollTop + room) / HEIGHT) + BEYOND);
    if (!force && first === this.first && last === this.last) return;
    const focused = this.body.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
    const stay = !force && first < this.last && last > this.first;
    const [from, to] = stay ? [Math.max(first, this.first), Math.min(last, this.last)] : [first, first];
    const kept = stay ? this.lines.slice(from - this.first, to - this.first) : [];
    for (const line of this.lines) if (!kept.includes(line)) line.remove();
    const before = this.made(first, from), after = this.made(to, last);
    this.above.after(...before);
    this.under.before(...after);
    Object.assign(this, { first, last, lines: [...before, ...kept, ...after] });
    this.above.style.height = `${first * HEIGHT}px`;
    this.under.style.height = `${(this.rows.length - last) * HEIGHT}px`;
    this.table.setAttribute("aria-rowcount", String(this.rows.length + 1));
    if (focused) this.body.querySelector(`[data-focus="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  }

  made(from, to) { return this.rows.slice(from, to).map((row, place) => this.line(row, from + place)); }

  line(row, place) {
    if (row.group !== undefined)
      return h("tr", { class: "group", "aria-rowindex": String(place + 2) },
        h("th", { scope: "rowgroup", colspan: String(this.columns.length) },
          h("button", { type: "button", class: "sort", "data-focus": `g${row.group}`, "aria-expanded": String(!row.closed), onclick: row.toggle },
            h("span", { "aria-hidden": "true" }, row.closed ? "▸ " : "▾ "), row.title)));
    const line = h("tr", { "aria-rowindex": String(place + 2) }, this.columns.map((column) =>
      h("td", { class: column.number ? "number" : null }, column.cell ? column.cell(row) : column.text(row))));
    if (this.onrow) {
      line.classList.add("link");
      line.addEventListener("click", (event) => { if (!event.target.closest("a, button, input, label")) this.onrow(row); });
    }
    return line;
  }
}

// Rows in the order of a column; what is not known comes last, and ties stay as they were.
export function sorted(rows, value, down) {
  const sign = down ? -1 : 1;
  return rows.map((row, place) => [value(row), place, row]).sort(([a, i], [b, j]) => {
    const noA = a === null || a === undefined || a === "", noB = b === null || b === undefined || b === "";
    if (noA || noB) return noA - noB || i - j;
    if (a === b) return i - j;
    const order = typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true });
    return sign * order || i - j;
  }).map(([, , row]) => row);
}
