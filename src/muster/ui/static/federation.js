// What the clients have, before any training.

import { ask } from "./api.js";
import { canvasFont, choice, colour, h, loading, marked, rem, replace, table } from "./dom.js";
import { number } from "./format.js";
import { Cells, shade, someTicks } from "./cells.js";

const ORDERS = ["their number", "size", "class imbalance", "divergence"];
const MOST = 400;

export async function federationPart(box, facts) {
  const kept = [];
  replace(box, loading("The run's data is divided again; that may take a while."));
  const found = await ask(`run/${facts.fingerprint}/federation`);
  const { clients } = found;
  let by = "their number", order = [];

  const mix = new Cells({
    columns: 0, rows: found.groups.length, label: "", hint: "Point at a cell: a client and a class. Enter or a click opens the client.",
    columnTicks: (pixels) => someTicks(order.length, (column) => clients.names[order[column]], pixels, 60),
    rowTicks: (pixels) => someTicks(found.groups.length, (row) => (found.groups[row].length > 14 ? `${found.groups[row].slice(0, 13)}…` : found.groups[row]), pixels, 15),
    palette: () => colour("c0"),
    colour: (column, row, own) => { const client = order[column], count = found.labels[client][row]; return count ? shade(own, count / Math.max(1, ...found.labels[client])) : null; },
    say: (column, row) => { const client = order[column]; return `Client ${clients.names[client]}: ${number(found.labels[client][row])} of ${number(clients.size[client])} samples are ${found.groups[row]}; class imbalance ${number(clients["class imbalance"][client], 3)}, ${number(clients.divergence[client], 3)} bits from all data.`; },
    open: (column) => open(order[column]),
  });
  const { clients: places, matrix } = found.compared;
  const most = Math.max(0.05, ...matrix.map((row) => Math.max(...row)));
  const apart = new Cells({
    columns: places.length, rows: places.length, height: (width) => width, label: "How different the labels of two clients are", hint: "Point at a cell: two clients. Those that are alike stand next to each other.",
    palette: () => colour("c0"), colour: (column, row, own) => shade(own, matrix[row][column] / most),
    say: (column, row) => `Clients ${clients.names[places[row]] ?? places[row]} and ${clients.names[places[column]] ?? places[column]}: ${number(matrix[row][column], 3)} bits apart.`,
  });
  const open = (client) => { location.hash = `#/run/${facts.fingerprint}/clients/${client}`; };
  const link = (name) => (clients.names.includes(name) ? h("a", { href: `#/run/${facts.fingerprint}/clients/${clients.names.indexOf(name)}` }, name) : name);
  const scatter = new Dots(clients, open);
  kept.push(mix, apart, scatter);

  function arrange() {
    const all = clients.names.map((_, place) => place);
    order = by === "their number" ? all : all.sort((a, b) => clients[by][b] - clients[by][a] || a - b);
    const cut = order.length > MOST;
    if (cut) { const step = order.length / MOST; order = Array.from({ length: MOST }, (_, place) => order[Math.floor(place * step)]); }
    mix.set({ columns: order.length, rows: found.groups.length, label: `${found.has_attributes ? "Classes and attribute values" : "Label mix"} of ${order.length} clients, ordered by ${by}`, height: () => Math.round((rem() / 16) * Math.max(140, Math.min(420, 18 * found.groups.length))) });
  }

  replace(box, h("h2", {}, found.title), h("p", { class: "quiet" }, "From counts of samples alone: nothing was trained for it."),
    h("div", { class: "cards" }, found.advice.map((own) => h("div", { class: "card" }, h("h3", {}, marked(own.finding)), h("p", {}, marked(own.text))))),
    h("div", { class: "card" }, h("h3", {}, "Who has what"), choice("Clients by", ORDERS, by, (value) => { by = value; arrange(); }),
      h("p", { class: "quiet axis" }, `One column a client, one row ${found.has_attributes ? "a class with an attribute value" : "a class"}; the stronger the colour, the nearer to what the client has most of${clients.names.length > MOST ? `; ${MOST} of ${number(clients.names.length)} clients, evenly spaced` : ""}`), mix.box),
    h("div", { class: "cards" },
      h("div", { class: "card" }, h("h3", {}, "Class imbalance over size"), scatter.box),
      h("div", { class: "card" }, h("h3", {}, "How different two clients' labels are"), places.length > 1
        ? [h("p", { class: "quiet axis" }, `One row and one column a client${places.length < clients.names.length ? `, ${number(places.length)} of ${number(clients.names.length)}` : ""}; strongest colour: ${number(most, 3)} bits apart`), h("div", { class: "square" }, apart.box)]
        : h("p", {}, "There is only one client: nobody to compare it with."))),
    h("div", { class: "cards" },
      h("div", { class: "card" }, table(["skew (0: none, 1: total)", "#all data", "#clients, mean"], found.metrics, "Skew")),
      h("div", { class: "card" }, table(["labels of a client against all data", "#mean", "#largest"], found.divergences, "Divergences"), h("p", { class: "quiet" }, `By chance alone, clients of these sizes would be ${number(found.chance, 3)} bits from all data on average.`)),
      h("div", { class: "card" }, table(["sizes", "#all clients"], found.sizes, "Sizes"))),
    h("div", { class: "card" }, h("h3", {}, "Most unusual clients"), found.unusual.length === 0 ? h("p", {}, "No client stands out.") : table(["client", "#samples", "#divergence", "what stands out"], found.unusual.map(([name, ...rest]) => [link(name), ...rest]), "Most unusual clients")));
  return { shown: () => { arrange(); apart.paint(); scatter.paint(); }, close: () => kept.forEach((item) => item.close()) };
}

class Dots {
  constructor(clients, open) {
    this.clients = clients;
    this.canvas = h("canvas", { tabindex: "0", role: "img", "aria-label": "Class imbalance of every client over its number of samples; the table of clients has the numbers" });
    this.words = h("p", { class: "cell-words", role: "status" }, "Point at a dot, or walk with the arrow keys. Enter or a click opens the client.");
    this.stage = h("div", { class: "stage" }, this.canvas);
    this.box = h("div", { class: "cells" }, this.stage, this.words);
    this.redraw = () => this.paint();
    this.watch = new ResizeObserver(this.redraw);
    this.watch.observe(this.stage);
    document.addEventListener("theme", this.redraw);
    this.canvas.addEventListener("pointermove", (event) => this.point(event));
    this.canvas.addEventListener("click", (event) => { if (this.point(event)) open(this.at); });
    this.canvas.addEventListener("keydown", (event) => {
      if (event.key === "Enter" && this.at !== null) open(this.at);
      const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      if (!step) return;
      event.preventDefault();
      const bySize = clients.size.map((_, place) => place).sort((a, b) => clients.size[a] - clients.size[b]);
      this.say(bySize[Math.max(0, Math.min(bySize.length - 1, bySize.indexOf(this.at ?? bySize[0]) + step))]);
    });
  }

  close() { this.watch.disconnect(); document.removeEventListener("theme", this.redraw); }

  at = null;

  equal() { return Math.min(...this.clients.size) === Math.max(...this.clients.size); }

  place(client) {
    const { size } = this.clients, low = Math.max(1, Math.min(...size)), high = Math.max(low + 1, ...size);
    const share = this.equal() ? 0.5 : high > 50 * low ? Math.log(Math.max(1, size[client]) / low) / Math.log(high / low) : (size[client] - low) / (high - low);
    return [44 + share * (this.canvas.clientWidth - 64), 14 + (1 - this.clients["class imbalance"][client]) * (this.canvas.clientHeight - 50)];
  }

  paint() {
    const width = this.stage.clientWidth, height = Math.round(18.75 * rem()), scale = devicePixelRatio || 1;
    if (!width) return;
    Object.assign(this.canvas.style, { width: `${width}px`, height: `${height}px` });
    this.canvas.width = Math.round(width * scale);
    this.canvas.height = Math.round(height * scale);
    const context = this.canvas.getContext("2d");
    context.scale(scale, scale);
    context.font = canvasFont();
    context.fillStyle = colour("quiet");
    context.strokeStyle = colour("line");
    for (const share of [0, 0.5, 1]) {
      const y = 14 + (1 - share) * (height - 50);
      context.fillText(String(share), 12, y + 4);
      context.beginPath();
      context.moveTo(40, y);
      context.lineTo(width - 8, y);
      context.stroke();
    }
    const { size } = this.clients;
    if (!this.equal()) {
      context.fillText(number(Math.min(...size)), 44, height - 20);
      context.textAlign = "right";
      context.fillText(number(Math.max(...size)), width - 16, height - 20);
    }
    context.textAlign = "center";
    if (this.equal()) context.fillText(number(size[0]), 44 + (width - 64) / 2, height - 20);
    context.fillText("samples of the client", width / 2, height - 6);
    context.fillStyle = shade(colour("c0"), 0.6);
    size.forEach((_, client) => { const [x, y] = this.place(client); context.beginPath(); context.arc(x, y, size.length > 500 ? 2.5 : 5, 0, 7); context.fill(); });
    if (this.at !== null) { const [x, y] = this.place(this.at); context.strokeStyle = colour("text"); context.lineWidth = 2; context.beginPath(); context.arc(x, y, 8, 0, 7); context.stroke(); }
  }

  point(event) {
    const box = this.canvas.getBoundingClientRect(), px = event.clientX - box.left, py = event.clientY - box.top;
    let best = null, least = 400;
    this.clients.size.forEach((_, client) => { const [x, y] = this.place(client), far = (x - px) ** 2 + (y - py) ** 2; if (far < least) { least = far; best = client; } });
    if (best !== null && best !== this.at) this.say(best);
    return best !== null;
  }

  say(client) {
    this.at = client;
    this.words.textContent = `Client ${this.clients.names[client]}: ${number(this.clients.size[client])} samples, class imbalance ${number(this.clients["class imbalance"][client], 3)}.`;
    this.paint();
  }
}
