// Who worked from when to when, in virtual time.

import { ask } from "./api.js";
import { canvasFont, colour, h, rem, replace } from "./dom.js";
import { duration, marksBetween, number } from "./format.js";

const COLOURS = { used: "c0", "left out": "edge", refused: "c1", failed: "c3", left: "c6", late: "c7", stale: "c2" };

export async function timelinePart(box, facts) {
  let found = null, window = null, follows = true, at = -1;
  const canvas = h("canvas", { tabindex: "0", role: "img" }), words = h("p", { class: "cell-words", role: "status" }, "Point at a training, or walk with the arrow keys. Enter or a click opens the client.");
  const stage = h("div", { class: "stage" }, canvas), tools = h("div", { class: "tools" }), note = h("p", { class: "quiet" });
  replace(box, tools, h("div", { class: "card" }, h("h2", {}, "Trainings in virtual time"),
    h("p", { class: "legend" }, Object.keys(COLOURS).map((name) => h("span", { class: `key ${name.replace(" ", "-")}` }, name === "left" ? "client left" : name))),
    h("p", { class: "quiet axis" }, "One row a client, with its number; virtual time from left to right. Lines: the server moves on."), stage, words), note);
  let rows = new Map(), order = [];

  async function load() {
    found = await ask(`run/${facts.fingerprint}/timeline`, window ? { from: window[0], to: window[1] } : {});
    if (!window) {
      const first = Math.min(...found.flights.started, found.whole);
      window = found.cut || found.flights.client.length > 400 ? [Math.max(first, found.whole - recent()), found.whole] : [0, found.whole];
    }
    const clients = [...new Set(found.flights.client)].sort((a, b) => a - b);
    rows = new Map(clients.map((client, place) => [client, place]));
    at = -1;
    order = found.flights.client.map((_, place) => place).sort((a, b) => found.flights.started[a] - found.flights.started[b]);
    note.textContent = found.cut ? "Only the latest trainings of this stretch are shown: look closer for the others." : "";
    paint();
  }

  const recent = () => { const last = found.rounds.slice(-8); return last.length ? Math.max(1e-9, found.whole - last[0][1]) : found.whole; };

  function move(by, scale) {
    const [from, to] = window, middle = (from + to) / 2 + by * (to - from), half = ((to - from) / 2) * scale;
    window = [Math.max(0, middle - half), Math.min(found.whole, middle + half)];
    if (window[1] - window[0] <= 0) window = [0, found.whole];
    follows = false;
    load();
  }
  replace(tools, [["Earlier", -0.5, 1], ["Later", 0.5, 1], ["Closer", 0, 0.5], ["Wider", 0, 2]].map(([title, by, scale]) =>
    h("button", { type: "button", onclick: () => move(by, scale) }, title)), h("button", { type: "button", onclick: () => { window = [0, found.whole]; follows = false; load(); } }, "All"));

  const left = 54, below = 24;
  const x = (time) => left + ((canvas.clientWidth - left - 8) * (time - window[0])) / (window[1] - window[0] || 1);
  const high = () => (canvas.clientHeight - below) / Math.max(1, rows.size);

  function paint() {
    if (!found || !stage.clientWidth) return;
    const scale = devicePixelRatio || 1, width = stage.clientWidth, height = Math.round((rem() / 16) * Math.max(160, Math.min(640, rows.size * 14 + below)));
    Object.assign(canvas.style, { width: `${width}px`, height: `${height}px` });
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    canvas.setAttribute("aria-label", `Timeline of ${found.flights.client.length} trainings of ${rows.size} clients, from ${duration(window[0])} to ${duration(window[1])}`);
    const context = canvas.getContext("2d");
    context.scale(scale, scale);
    context.font = canvasFont();
    context.strokeStyle = colour("line");
    context.fillStyle = colour("quiet");
    for (const [, , ended] of found.rounds) {
      if (ended < window[0] || ended > window[1]) continue;
      context.beginPath();
      context.moveTo(x(ended), 0);
      context.lineTo(x(ended), height - below);
      context.stroke();
    }
    context.textAlign = "center";
    for (const time of marksBetween("virtual_seconds", window[0], window[1], width / 90)) {
      const half = context.measureText(duration(time)).width / 2;
      context.fillText(duration(time), Math.max(left + half - 8, Math.min(x(time), width - half - 2)), height - 7);
    }
    context.textAlign = "right";
    const each = Math.max(1, Math.ceil(15 / high()));
    for (const [client, place] of rows) if (place % each === 0) context.fillText(String(client), left - 8, Math.max(10, (place + 0.5) * high() + 4));
    const chosen = Object.fromEntries(Object.entries(COLOURS).map(([name, own]) => [name, colour(own)]));
    context.save();
    context.beginPath();
    context.rect(left, 0, width - left, height - below);
    context.clip();
    found.flights.client.forEach((client, place) => {
      const from = x(found.flights.started[place]), to = x(found.flights.ended[place]);
      if (to < left || from > width) return;
      context.fillStyle = chosen[found.outcomes[found.flights.outcome[place]]];
      context.fillRect(from, rows.get(client) * high() + 1, Math.max(2, to - from - 1), Math.max(2, high() - 2));
      if (place === at) {
        context.strokeStyle = colour("text");
        context.lineWidth = 2;
        context.strokeRect(from, rows.get(client) * high() + 1, Math.max(2, to - from - 1), Math.max(2, high() - 2));
      }
    });
    context.restore();
  }

  function say(place) {
    at = place;
    const own = Object.fromEntries(Object.entries(found.flights).map(([name, values]) => [name, values[place]]));
    words.textContent = `Client ${own.client}, round ${number(own.round)}: ${found.outcomes[own.outcome]}; from ${duration(own.started)}, took ${duration(own.ended - own.started)}${own.staleness ? `; ${own.staleness} aggregations in between` : ""}.`;
    paint();
  }

  function pointed(event) {
    const place = canvas.getBoundingClientRect(), px = event.clientX - place.left, row = Math.floor((event.clientY - place.top) / high());
    const hit = found.flights.client.findIndex((client, number_) => rows.get(client) === row && px >= x(found.flights.started[number_]) - 1 && px <= x(found.flights.ended[number_]) + 1);
    if (hit >= 0 && hit !== at) say(hit);
    return hit >= 0;
  }
  const open = () => { location.hash = `#/run/${facts.fingerprint}/clients/${found.flights.client[at]}`; };
  canvas.addEventListener("pointermove", pointed);
  canvas.addEventListener("click", (event) => { if (pointed(event)) open(); });
  canvas.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && at >= 0) { open(); return; }
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!step || !order.length) return;
    event.preventDefault();
    say(order[Math.max(0, Math.min(order.length - 1, order.indexOf(at) + step))]);
  });
  const watch = new ResizeObserver(paint);
  watch.observe(stage);
  document.addEventListener("theme", paint);
  await load();
  return { shown: paint, refreshed: async () => { if (follows) window = null; await load(); }, close: () => { watch.disconnect(); document.removeEventListener("theme", paint); } };
}
