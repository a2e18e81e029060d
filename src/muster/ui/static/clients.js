// The clients of a run, and everything about one of them.

import { ask } from "./api.js";
import { add, colour, h, loading, replace, svg, table, trouble } from "./dom.js";
import { known, marksBetween, metricText, number, percentMark, titled } from "./format.js";
import { Chart } from "./chart.js";
import { Cells, shade } from "./cells.js";
import { Grid, sorted } from "./grid.js";

const MAX_COLUMNS = 1200, MAX_LISTED = 500;
const COLUMNS = {
  client: { title: "client", number: true, width: 80 }, accuracy: { title: "accuracy", number: true, width: 110 }, trained: { title: "trained", number: true, width: 100 }, weight: { title: "weight in all", number: true, width: 120 },
  samples: { title: "samples", number: true, width: 100 }, "class imbalance": { title: "class imbalance", number: true, width: 140 },
  "last round": { title: "last in round", number: true, width: 120 }, "left out": { title: "left out", number: true, width: 100 }, refused: { title: "refused", number: true, width: 100 }, failed: { title: "failed", number: true, width: 90 },
};

export async function clientsPart(box, facts, words) {
  let rows = [], sort = "", down = true, least = "", detail = null, titles = [];
  const list = h("div", {}), one = h("div", {}), note = h("p", { class: "quiet" });
  const search = h("input", { type: "search", placeholder: "number, or accuracy<0.5", size: "24", oninput: () => { least = search.value; arrange(); } });
  const count = h("span", { class: "quiet", role: "status" });
  const grid = new Grid({
    label: "Clients", kind: "narrow", onsort: (key) => { down = sort === key ? !down : key !== "accuracy"; sort = key; arrange(); },
    onrow: (row) => { location.hash = `#/run/${facts.fingerprint}/clients/${row.client}`; },
  });
  replace(list, h("div", { class: "tools" }, h("label", { class: "field" }, h("span", {}, "Filter"), search), count), note, grid.box);
  replace(box, list, one);

  const text = (key, row) => (key === "accuracy" ? metricText("accuracy", row[key]) : number(row[key], 3));
  const column = (key) => ({ key, ...COLUMNS[key], value: (row) => row[key], text: (row) => text(key, row),
    ...(key === "client" ? { cell: (row) => h("a", { href: `#/run/${facts.fingerprint}/clients/${row.client}`, "data-focus": `k${row.client}` }, String(row.client)) } : {}) });

  function arrange() {
    const parts = /^(.+?)\s*([<>=])\s*([\d.]+)$/.exec(least.trim());
    const fits = parts
      ? (row) => { const own = row[parts[1].trim()]; return known(own) && (parts[2] === "<" ? own < Number(parts[3]) : parts[2] === ">" ? own > Number(parts[3]) : own === Number(parts[3])); }
      : (row) => !least.trim() || String(row.client) === least.trim();
    const fitting = rows.filter(fits);
    grid.setSort(sort, down);
    grid.setRows(sorted(fitting, (row) => row[sort], down));
    count.textContent = fitting.length === rows.length ? `${number(rows.length)} clients` : `${number(fitting.length)} of ${number(rows.length)} clients`;
  }

  function take(found) {
    titles = Object.keys(COLUMNS).filter((name) => found[name] && (!["left out", "refused", "failed"].includes(name) || found[name].some(Boolean)));
    rows = found.client.map((_, place) => Object.fromEntries(Object.keys(found).map((name) => [name, found[name][place]])));
    if (!sort) [sort, down] = titles.includes("accuracy") ? ["accuracy", false] : ["trained", true]; // who is served badly comes first
    grid.setColumns(titles.map(column));
    arrange();
  }

  // What the data tells takes longer, for it is divided again: the rest is shown before it, but only the first time.
  const place = `run/${facts.fingerprint}/clients`;
  let withFacts = false;
  async function load() {
    take(await ask(place, withFacts ? { facts: "1" } : {}));
  }
  function loadFacts() {
    ask(place, { facts: "1" }).then((found) => { withFacts = true; take(found); }, (error) => { note.textContent = `Sizes and label mixes are not shown: ${error.problem}.`; });
  }

  async function moved([client]) {
    detail?.close();
    detail = null;
    list.hidden = client !== undefined;
    one.hidden = client === undefined;
    if (client === undefined) { grid.paint(true); return; }
    const inside = h("div", {}, loading());
    replace(one, inside);
    const made = await oneClient(inside, facts, client).catch((error) => { replace(inside, trouble(error)); });
    if (inside.isConnected) detail = made;
    else made?.close(); // somebody went elsewhere meanwhile
  }

  await load();
  loadFacts();
  return {
    shown: () => moved(words), moved, refreshed: async () => { await load(); await detail?.refreshed(); },
    close: () => { grid.close(); detail?.close(); },
  };
}

async function oneClient(box, facts, client) {
  const place = `run/${facts.fingerprint}/client/${encodeURIComponent(client)}`, labels = h("div", { class: "mix" }, loading());
  const figures = h("dl", { class: "figures" }), charts = new Map(), cards = h("div", { class: "cards" }), troubles = h("div", {});
  const every = h("summary", {}), rows = h("div", {});
  let found = await ask(place), byRound = new Map();
  const bin = () => Math.max(1, Math.ceil(facts.done / MAX_COLUMNS));
  const within = (column) => Array.from({ length: bin() }, (_, step) => byRound.get(column * bin() + step + 1) ?? []).flat();
  const strip = new Cells({
    columns: 0, rows: 1, height: () => 34, label: `When client ${client} was chosen`, hint: "Point at a round, or walk with the arrow keys.",
    columnTicks: (pixels) => marksBetween("round", 1, facts.done, pixels / 60).map((round) => [(round - 1) / bin(), number(round)]),
    palette: () => ({ trained: colour("c0"), "left out": colour("edge"), refused: colour("c1"), failed: colour("c3") }),
    colour: (column, _, chosen) => { const own = within(column); return own.length ? shade(chosen[own.at(-1).fate], 1) : null; },
    say: (column) => {
      const own = within(column), from = column * bin() + 1, to = Math.min(facts.done, from + bin() - 1);
      return `${from === to ? `Round ${number(from)}` : `Rounds ${number(from)}–${number(to)}`}: ${own.length ? own.map((item) => (item.weight === null ? item.fate : `trained with weight ${number(item.weight, 3)}`)).join("; ") : "not chosen"}.`;
    },
  });

  function show(label, x, line, options = {}) {
    if (!charts.has(label)) {
      const made = new Chart({ label, height: 220, extent: () => [1, Math.max(2, facts.done)], ...options });
      charts.set(label, made);
      cards.append(h("div", { class: "card" }, h("h3", {}, label), made.box));
    }
    charts.get(label).set(...oneEach(x, [line]), "round");
  }

  function paint() {
    const trained = found.history.filter((own) => own.fate === "trained");
    byRound = Map.groupBy(found.history, (own) => own.round);
    replace(figures, [["trained", number(trained.length)], ["weight in all", number(trained.reduce((sum, own) => sum + own.weight, 0), 3)],
      ["refused or failed", number(found.history.filter((own) => ["refused", "failed"].includes(own.fate)).length)],
      ["accuracy", metricText("accuracy", found.accuracy.values.at(-1))]].map(([title, value]) => h("div", {}, h("dt", {}, title), h("dd", {}, value))));
    strip.set({ columns: Math.ceil(facts.done / bin()) });
    if (found.accuracy.rounds.length > 1) show("Accuracy on its own test data", found.accuracy.rounds, { name: "accuracy", values: found.accuracy.values }, { text: (value) => metricText("accuracy", value), mark: percentMark });
    if (trained.length > 1) show("Weight of its updates", trained.map((own) => own.round), { name: "weight", values: trained.map((own) => own.weight), place: 2 });
    Object.entries(found.reports).forEach(([signal, told], at) => show(titled(signal.replaceAll("_", " ")), told.rounds, { name: signal.replaceAll("_", " "), values: told.values, place: at + 3 }));
    replace(troubles, found.troubles.length ? [h("h3", {}, "Refusals and failures"), table(["#round", "what", "why"], found.troubles.map((own) => [number(own.round), own.kind, own.detail]), "Refusals")] : null);
    every.textContent = found.history.length > MAX_LISTED ? `The last ${MAX_LISTED} of ${number(found.history.length)} trainings` : `Every training (${found.history.length})`;
    replace(rows, table(["#round", "what", "#weight"], found.history.slice(-MAX_LISTED).reverse().map((own) => [number(own.round), own.fate, number(own.weight, 3)]), "Trainings"));
  }

  replace(box,
    h("p", { class: "crumbs" }, h("a", { href: `#/run/${facts.fingerprint}/clients` }, "← All clients")),
    h("h2", {}, `Client ${client}`), figures,
    add(cards, [h("div", { class: "card" }, h("h3", {}, "Label mix"), labels), h("div", { class: "card" }, h("h3", {}, "When it was chosen"), strip.box)]),
    troubles, h("details", {}, every, rows));
  paint();
  // The data is divided again for this, which may take longer than all the rest.
  ask(`${place}/labels`).then(mix, (error) => h("p", { class: "quiet" }, `Not known here: ${error.problem}.`)).then((shown) => replace(labels, shown));
  return {
    async refreshed() { found = await ask(place); paint(); },
    close() { strip.close(); charts.forEach((chart) => chart.close()); },
  };
}

// A client may train several times in a round: the last counts for the curve, the table has all.
function oneEach(x, lines) {
  const last = new Map(x.map((value, place) => [value, place]));
  const places = [...last.values()];
  return [places.map((place) => x[place]), lines.map((line) => ({ ...line, values: places.map((place) => line.values[place]) }))];
}

function mix({ classes, own, all }) {
  const total = own.reduce((a, b) => a + b, 0) || 1;
  const most = Math.max(...own.map((value) => value / total), ...all);
  const shown = classes.map((name) => (name.length > 16 ? `${name.slice(0, 15)}…` : name));
  const high = 18, left = 16 + 6.5 * Math.max(...shown.map((name) => name.length)), width = 170;
  const picture = svg("svg", { viewBox: `0 0 ${left + width + 50} ${classes.length * high + 4}`, class: "bars", role: "img", "aria-label": "Share of each class, and its share in all data" });
  classes.forEach((_, place) => {
    const y = place * high, share = own[place] / total;
    picture.append(
      svg("text", { x: left - 6, y: y + 13, "text-anchor": "end" }, shown[place]),
      svg("rect", { x: left, y: y + 3, width: (width * share) / most, height: high - 6, class: "own" }),
      svg("line", { x1: left + (width * all[place]) / most, x2: left + (width * all[place]) / most, y1: y + 1, y2: y + high - 1, class: "all" }),
      svg("text", { x: left + (width * Math.max(share, all[place])) / most + 6, y: y + 13 }, number(own[place])));
  });
  return h("div", {}, picture, h("p", { class: "quiet" }, "Bars: its samples; strokes: the share of each class in all data."));
}
