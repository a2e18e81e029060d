// Who was chosen when: clients × rounds.

import { ask } from "./api.js";
import { choice, colour, h, replace, trouble } from "./dom.js";
import { marksBetween, number } from "./format.js";
import { Cells, shade, someTicks } from "./cells.js";

const ORDERS = [["client", "their number"], ["trained", "participation"], ["accuracy", "accuracy"], ["samples", "samples"], ["class imbalance", "class imbalance"]];

function bytesOf(text) {
  if (!text) return null;
  const raw = atob(text), found = new Uint8Array(raw.length);
  for (let place = 0; place < raw.length; place += 1) found[place] = raw.charCodeAt(place);
  return found;
}

export async function mapPart(box, facts) {
  let by = "client", found = null, planes = {}, most = 1;
  const tools = h("div", { class: "tools" }), problem = h("div", {}), axis = h("p", { class: "quiet axis" });
  const first = (column) => Math.ceil((column * found.rounds) / found.width) + 1;
  const last = (column) => Math.ceil(((column + 1) * found.rounds) / found.width);
  const members = (row) => found.order.slice(Math.ceil((row * found.clients) / found.height), Math.max(Math.ceil((row * found.clients) / found.height) + 1, Math.ceil(((row + 1) * found.clients) / found.height)));
  const count = (name, column, row) => (planes[name] ? planes[name][row * found.width + column] : 0);
  const single = (column, row) => first(column) === last(column) && members(row).length === 1;
  const place = (column, row) => {
    const who = members(row), when = first(column) === last(column) ? `round ${number(first(column))}` : `rounds ${number(first(column))}–${number(last(column))}`;
    return `${who.length === 1 ? `Client ${who[0]}` : `Clients ${who[0]} to ${who[who.length - 1]} (${who.length})`}, ${when}`;
  };
  const cells = new Cells({
    columns: 0, rows: 0, label: "", hint: "Point at a cell, or walk with the arrow keys. Enter or a click opens the client.",
    columnTicks: (pixels) => marksBetween("round", 1, found.rounds, pixels / 60).map((round) => [((round - 1) * found.width) / found.rounds, number(round)]),
    rowTicks: (pixels) => someTicks(found.height, (row) => String(members(row)[0]), pixels, 15),
    palette: () => ({ trained: colour("c0"), "left out": colour("edge"), refused: colour("c1"), failed: colour("c3") }),
    colour(column, row, chosen) {
      if (count("refused", column, row)) return shade(chosen.refused, 1);
      if (count("failed", column, row)) return shade(chosen.failed, 1);
      const trained = count("trained", column, row);
      if (trained) return shade(chosen.trained, most > 1 ? 0.25 + (0.75 * trained) / most : 1);
      return count("left out", column, row) ? shade(chosen["left out"], 0.5) : null;
    },
    say(column, row) {
      const told = ["trained", "left out", "refused", "failed"].map((name) => [name, count(name, column, row)]).filter(([, times]) => times);
      return `${place(column, row)}: ${told.length ? told.map(([name, times]) => (times === 1 ? name : `${name} ${times === 255 ? "255 or more" : times} times`)).join(", ") : "not chosen"}.`;
    },
    async more(column, row) {
      if (!single(column, row)) return null;
      const cell = await ask(`run/${facts.fingerprint}/cell`, { client: members(row)[0], round: first(column) });
      const parts = [
        ...cell.trainings.map((own) => (own["left out"] ? "left out" : `trained${cell.trainings.length > 1 ? ` in training ${own.training + 1}` : ""} with weight ${number(own.weight, 3)}`)),
        ...cell.troubles.map((own) => `${own.kind}: ${own.detail}`),
        ...Object.entries(cell.told).map(([signal, value]) => `${signal.replaceAll("_", " ")} ${number(value, 3)}`),
      ];
      return parts.length ? `${place(column, row)}: ${parts.join("; ")}.` : null;
    },
    open: (column, row) => { location.hash = `#/run/${facts.fingerprint}/clients/${members(row)[0]}`; },
  });
  replace(box, tools, problem, h("div", { class: "card" }, h("h2", {}, "Who took part when"),
    h("p", { class: "legend" }, ["trained", "left out", "refused", "failed"].map((name) => h("span", { class: `key ${name.replace(" ", "-")}` }, name))),
    axis, cells.box));

  function paintTools() {
    replace(tools, choice("Clients by", ORDERS, by, async (value) => {
      const before = by;
      by = value;
      try { await load(); replace(problem); } catch (error) { by = before; replace(problem, trouble(error)); paintTools(); }
    }));
  }

  async function load() {
    found = await ask(`run/${facts.fingerprint}/map`, { by });
    planes = Object.fromEntries(Object.entries(found.planes).map(([name, text]) => [name, bytesOf(text)]));
    most = planes.trained ? planes.trained.reduce((a, b) => Math.max(a, b), 1) : 1;
    axis.textContent = `Rounds from left to right; ${found.clients > found.height ? "clients from top to bottom" : "one row a client, with its number"}${most > 1 ? `; the stronger the colour, the more trainings (at most ${most === 255 ? "255 or more" : most})` : ""}.`;
    cells.set({ columns: found.rounds ? found.width : 0, rows: found.clients ? found.height : 0, label: `Map of ${number(found.clients)} clients over ${number(found.rounds)} rounds, ordered by ${by}` });
  }

  paintTools();
  await load();
  return { shown: () => cells.paint(), refreshed: load, close: () => cells.close() };
}
