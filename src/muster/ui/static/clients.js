// The clients of a run, and everything about one of them.

import { ask } from "./api.js";
import { colour, h, loading, replace, svg, table } from "./dom.js";
import { known, metricText, number } from "./format.js";
import { Chart } from "./chart.js";
import { Cells, shade } from "./cells.js";
import { Grid, sorted } from "./grid.js";

const COLUMNS = {
  client: { title: "client", number: true, width: 90 }, trained: { title: "trained", number: true, width: 100 }, weight: { title: "weight in all", number: true, width: 120 },
  accuracy: { title: "accuracy", number: true, width: 110 }, samples: { title: "samples", number: true, width: 100 }, "class imbalance": { title: "class imbalance", number: true, width: 140 },
  "last round": { title: "last in round", number: true, width: 120 }, "left out": { title: "left out", number: true, width: 100 }, refused: { title: "refused", number: true, width: 100 }, failed: { title: "failed", number: true, width: 90 },
};

export async function clientsPart(box, facts, words) {
  let rows = [], sort = "trained", down = true, least = "", detail = null, titles = [];
  const list = h("div", {}), one = h("div", {}), note = h("p", { class: "quiet" });
  const search = h("input", { type: "search", placeholder: "number, or accuracy<0.5", oninput: () => { least = search.value; arrange(); } });
  const count = h("span", { class: "quiet", role: "status" });
  const grid = new Grid({
    label: "Clients", onsort: (key) => { down = sort === key ? !down : true; sort = key; arrange(); },
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
    grid.setColumns(titles.map(column));
    arrange();
  }

  let withFacts = true;
  async function load() {
    take(await ask(`run/${facts.fingerprint}/clients`));
    if (!withFacts) return;
    ask(`run/${facts.fingerprint}/clients`, { facts: "1" }).then(take).catch((error) => {
      withFacts = false;
      note.textContent = `Sizes and label mixes are not shown: ${error.problem}.`;
    });
  }

  async function moved([client]) {
    detail?.forEach((item) => item.close());
    detail = null;
    list.hidden = client !== undefined;
    one.hidden = client === undefined;
    if (client === undefined) { grid.paint(true); return; }
    replace(one, loading());
    detail = await oneClient(one, facts, client);
  }

  await load();
  return {
    shown: () => moved(words), moved, refreshed: load,
    close: () => { grid.close(); detail?.forEach((item) => item.close()); },
  };
}

async function oneClient(box, facts, client) {
  const place = `run/${facts.fingerprint}/client/${encodeURIComponent(client)}`, labels = h("div", {}, loading());
  const found = await ask(place);
  const parts = [], trained = found.history.filter((own) => own.fate === "trained");
  const chart = (label, lines, options = {}) => {
    const made = new Chart({ label, height: 220, ...options });
    parts.push([made, lines]);
    return h("div", { class: "card" }, h("h3", {}, label), made.box);
  };
  const strip = new Cells({
    columns: facts.done, rows: 1, height: 34, label: `When client ${client} was chosen`, hint: "Rounds from left to right.",
    palette: () => ({ trained: colour("c0"), "left out": colour("edge"), refused: colour("c1"), failed: colour("c3") }),
    colour: (place, _, chosen) => { const own = found.history.filter((item) => item.round === place + 1); return own.length ? shade(chosen[own[own.length - 1].fate], 1) : null; },
    say: (place) => {
      const own = found.history.filter((item) => item.round === place + 1);
      return `Round ${place + 1}: ${own.length ? own.map((item) => (item.weight === null ? item.fate : `trained with weight ${number(item.weight, 3)}`)).join("; ") : "not chosen"}.`;
    },
  });
  const thin = facts.done > 4000 ? h("p", { class: "quiet" }, "Too many rounds to draw one by one: see the table.") : strip.box;
  replace(box,
    h("p", { class: "crumbs" }, h("a", { href: `#/run/${facts.fingerprint}/clients` }, "All clients"), " / "),
    h("h2", {}, `Client ${client}`),
    h("dl", { class: "figures" }, [["trained", number(trained.length)], ["weight in all", number(trained.reduce((sum, own) => sum + own.weight, 0), 3)],
      ["refused or failed", number(found.history.filter((own) => ["refused", "failed"].includes(own.fate)).length)],
      ["accuracy", metricText("accuracy", found.accuracy.values.at(-1))]].map(([title, value]) => h("div", {}, h("dt", {}, title), h("dd", {}, value)))),
    h("div", { class: "cards" },
      h("div", { class: "card" }, h("h3", {}, "Label mix"), labels),
      h("div", { class: "card" }, h("h3", {}, "When it was chosen"), thin),
      found.accuracy.rounds.length > 1 ? chart("Accuracy on its own test data", [found.accuracy.rounds, [{ name: "accuracy", values: found.accuracy.values }]], { text: (value) => metricText("accuracy", value) }) : null,
      trained.length > 1 ? chart("Weight of its updates", [trained.map((own) => own.round), [{ name: "weight", values: trained.map((own) => own.weight), place: 2 }]]) : null,
      Object.entries(found.reports).map(([signal, told], place) => chart(signal.replaceAll("_", " "), [told.rounds, [{ name: signal, values: told.values, place: place + 3 }]]))),
    found.troubles.length ? h("div", {}, h("h3", {}, "Refusals and failures"), table(["#round", "what", "why"], found.troubles.map((own) => [number(own.round), own.kind, own.detail]), "Refusals")) : null,
    h("details", {}, h("summary", {}, `Every training (${found.history.length})`),
      table(["#round", "what", "#weight"], found.history.slice(-500).reverse().map((own) => [number(own.round), own.fate, number(own.weight, 3)]), "Trainings")));
  for (const [made, [x, lines]] of parts) made.set(...oneEach(x, lines), "round");
  // The data is divided again for this, which may take longer than all the rest.
  ask(`${place}/labels`).then(mix, (error) => h("p", { class: "quiet" }, `Not known here: ${error.problem}.`)).then((shown) => replace(labels, shown));
  return [strip, ...parts.map(([made]) => made)];
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
  const high = 18, left = 110, width = 260;
  const picture = svg("svg", { viewBox: `0 0 ${left + width + 70} ${classes.length * high + 4}`, class: "bars", role: "img", "aria-label": "Share of each class, and its share in all data" });
  classes.forEach((name, place) => {
    const y = place * high, share = own[place] / total;
    picture.append(
      svg("text", { x: left - 6, y: y + 13, "text-anchor": "end" }, name.length > 16 ? `${name.slice(0, 15)}…` : name),
      svg("rect", { x: left, y: y + 3, width: (width * share) / most, height: high - 6, class: "own" }),
      svg("line", { x1: left + (width * all[place]) / most, x2: left + (width * all[place]) / most, y1: y + 1, y2: y + high - 1, class: "all" }),
      svg("text", { x: left + (width * Math.max(share, all[place])) / most + 6, y: y + 13 }, number(own[place])));
  });
  return h("div", {}, picture, h("p", { class: "quiet" }, "Bars: its samples; strokes: the share of each class in all data."));
}
