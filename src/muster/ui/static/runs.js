// All runs: filter, sort, group, watch, choose some to compare.

import { ask } from "./api.js";
import { choice, h, replace } from "./dom.js";
import { bytes, duration, isShare, known, metricName, metricText, moment, number, shortMetricName } from "./format.js";
import { Grid, sorted } from "./grid.js";

const FIRST_METRICS = ["accuracy", "client_accuracy_worst_tenth", "worst_group_accuracy", "loss"];
const FACTS = {
  name: { title: "run" },
  status: { title: "status", width: 125 },
  progress: { title: "rounds", width: 150 },
  left: { title: "time left", number: true, text: (row) => (row.status === "running" ? duration(row.left) : "") },
  method: { title: "selection" },
  seed: { title: "seed", number: true },
  sweeps: { title: "sweep", width: 130 },
  client_trainings: { title: "trainings", number: true, text: (row) => number(row.client_trainings) },
  bytes: { title: "sent", number: true, width: 100, text: (row) => bytes(row.bytes) },
  virtual_seconds: { title: "virtual time", number: true, text: (row) => (row.virtual_seconds ? duration(row.virtual_seconds) : "–") },
  seconds: { title: "took", number: true, width: 110, text: (row) => duration(row.seconds) },
  started: { title: "begun", width: 165, text: (row) => moment(row.started) },
  fingerprint: { title: "fingerprint", text: (row) => row.fingerprint.slice(0, 8) },
};
const REST = ["client_trainings", "bytes", "started"];
const SIGNS = { running: "▶", complete: "✓", failed: "✕", stopped: "■", interrupted: "!", planned: "…" };

// Wide enough for the longest text, so that no two names are cut to the same beginning; a paragraph is cut all the same.
const narrow = () => innerWidth < 700;
const letter = () => (narrow() ? 7.4 : 8.6);
function widthOf(texts) {
  const longest = texts.reduce((most, text) => Math.max(most, (text || "").length), 0);
  return Math.min(narrow() ? 230 : 480, Math.max(narrow() ? 110 : 140, Math.ceil(letter() * longest) + (narrow() ? 18 : 26)));
}

// Room for a title, which is bold, and the sign of its order.
const headWidth = (title) => Math.ceil(1.06 * letter() * title.length) + (narrow() ? 27 : 44);

export function statusSign(status) {
  return h("span", { class: `status ${status}` }, h("span", { "aria-hidden": "true" }, SIGNS[status] || ""), ` ${status}`);
}

export function progressBar(done, rounds) {
  const bar = h("progress", { max: String(rounds || 1), "aria-label": `${done} of ${rounds} rounds` });
  bar.value = done;
  return h("span", { class: "progress" }, bar, ` ${number(done)}/${number(rounds)}`);
}

export async function runsView(box, params) {
  let rows = [], settings = [], metrics = [], first = [], groups = new Set(), timer = null;
  const chosen = new Set();
  const wanted = { filter: params.get("filter") || "", group: params.get("group") || "", sort: params.get("sort") || "", down: params.get("down") === "1",
    columns: params.get("columns") ? params.get("columns").split(",") : null };

  const filter = h("input", { type: "search", id: "filter", value: wanted.filter, placeholder: "words, alpha=0.1, accuracy>0.8", autocomplete: "off",
    oninput: () => { wanted.filter = filter.value; keep(); arrange(); } });
  const count = h("span", { class: "quiet", role: "status" });
  const tools = h("div", { class: "tools" });
  const compare = h("a", { class: "button", hidden: true }, "Compare");
  const empty = h("p", { class: "quiet", hidden: true }, "No runs yet. Start one with ", h("code", {}, "muster run CONFIG.toml"), ": it appears here by itself.");
  const grid = new Grid({
    label: "Runs", kind: "tall",
    onsort: (key) => { wanted.down = wanted.sort === key ? !wanted.down : Boolean(columnOf(key).number); wanted.sort = key; keep(); arrange(); },
    onrow: (row) => { location.hash = `#/run/${row.fingerprint}`; },
  });
  replace(box, h("h1", {}, "Runs"), tools, empty, grid.box);

  function keep() {
    const words = new URLSearchParams();
    for (const name of ["filter", "group", "sort"]) if (wanted[name]) words.set(name, wanted[name]);
    if (wanted.down) words.set("down", "1");
    if (wanted.columns) words.set("columns", wanted.columns.join(","));
    const query = words.toString();
    history.replaceState(null, "", `#/runs${query ? `?${query}` : ""}`);
  }

  function columnOf(key) {
    if (key === "chosen") return { key, title: "", plain: true, width: narrow() ? 36 : 48, value: () => "", cell: (row) => {
      const mark = h("input", { type: "checkbox", "aria-label": `Choose ${row.name}, seed ${row.seed}`, "data-focus": `c${row.fingerprint}`, checked: chosen.has(row.fingerprint),
        onchange: () => { if (mark.checked) chosen.add(row.fingerprint); else chosen.delete(row.fingerprint); showChosen(); } });
      return mark;
    } };
    if (key === "name") return { key, ...FACTS.name, width: widthOf(rows.map((row) => row.name)), value: (row) => row.name,
      cell: (row) => h("a", { href: `#/run/${row.fingerprint}`, "data-focus": row.fingerprint, title: row.name }, row.name || "run") };
    if (key === "status") return { key, ...FACTS.status, value: (row) => row.status, cell: (row) => statusSign(row.status) };
    if (key === "progress") return { key, ...FACTS.progress, value: (row) => row.done / (row.rounds || 1), cell: (row) => progressBar(row.done, row.rounds) };
    if (key === "method") return { key, ...FACTS.method, width: widthOf(rows.map((row) => row.method)), value: (row) => row.method, text: (row) => row.method || "–" };
    if (FACTS[key]) return { key, width: headWidth(FACTS[key].title), text: (row) => (known(row[key]) ? String(row[key]) : "–"), ...FACTS[key], value: (row) => row[key] };
    if (metrics.includes(key)) return { key, title: shortMetricName(key), number: true, width: Math.max(narrow() ? 85 : 105, headWidth(shortMetricName(key))), value: (row) => row.metrics[key], text: (row) => metricText(key, row.metrics[key]) };
    return { key, title: shortKey(key), width: headWidth(shortKey(key)), value: (row) => asNumber(row.settings[key]), text: (row) => row.settings[key] ?? "–" };
  }

  // "alpha" of "partition.alpha", where no other setting and no column is called that.
  function shortKey(key) {
    const last = key.slice(key.lastIndexOf(".") + 1);
    return last in FACTS || settings.filter((other) => other === last || other.endsWith(`.${last}`)).length > 1 ? key : last;
  }

  const asNumber = (text) => (text !== undefined && text !== "" && !Number.isNaN(Number(text)) ? Number(text) : text);

  function shownColumns() {
    if (wanted.columns) return wanted.columns;
    if (narrow()) return ["name", ...first.slice(0, 1), "status", "progress"];
    const told = settings.filter((key) => !/^(selection|rounds|devices)/.test(key)).slice(0, 2);
    const moving = rows.some((row) => row.status === "running");
    return ["name", "status", "progress", ...(moving ? ["left"] : []), "method", "seed", ...first, ...told, ...REST];
  }

  function matcher(text) {
    const tests = text.trim().split(/\s+/).filter(Boolean).map((word) => {
      const parts = /^([^=<>]+)(=|<|>)(.+)$/.exec(word);
      if (!parts) {
        const low = word.toLowerCase();
        return (row) => `${row.name} ${row.method} ${row.sweeps} ${row.status} ${row.fingerprint} seed${row.seed}`.toLowerCase().includes(low);
      }
      const [, key, sign, value] = parts;
      const of = (row) => {
        const full = key in row.metrics ? row.metrics[key] : key in row ? row[key] : undefined;
        if (full !== undefined) return full;
        const name = Object.keys(row.settings).find((own) => own === key || own.endsWith(`.${key}`));
        return name === undefined ? undefined : asNumber(row.settings[name]);
      };
      return (row) => {
        const own = of(row);
        if (!known(own)) return false;
        if (sign === "=") return String(own).toLowerCase() === value.toLowerCase() || (typeof own === "number" && own === Number(value));
        return sign === "<" ? own < Number(value) : own > Number(value);
      };
    });
    return (row) => tests.every((test) => test(row));
  }

  function arrange() {
    const fitting = rows.filter(matcher(wanted.filter));
    const column = wanted.sort ? columnOf(wanted.sort) : null;
    const ordered = column ? sorted(fitting, column.value, wanted.down) : [...fitting].reverse();
    grid.setSort(wanted.sort, wanted.down);
    grid.setRows(wanted.group ? grouped(ordered) : ordered);
    count.textContent = fitting.length === rows.length ? `${number(rows.length)} runs` : `${number(fitting.length)} of ${number(rows.length)} runs`;
    empty.hidden = rows.length > 0;
  }

  function grouped(ordered) {
    const column = columnOf(wanted.group), found = new Map();
    for (const row of ordered) {
      const own = wanted.group === "name" || wanted.group === "status" ? row[wanted.group] : column.text(row);
      if (!found.has(own)) found.set(own, []);
      found.get(own).push(row);
    }
    const shown = [];
    for (const [name, members] of found) {
      const closed = groups.has(name);
      const means = FIRST_METRICS.filter((metric) => metrics.includes(metric)).slice(0, 2).map((metric) => {
        const values = members.map((row) => row.metrics[metric]).filter(known);
        return values.length ? `${metricName(metric)} ${metricText(metric, values.reduce((a, b) => a + b, 0) / values.length)}` : "";
      }).filter(Boolean);
      shown.push({ group: name, title: `${column.title} ${name}: ${members.length} ${members.length === 1 ? "run" : "runs"}${means.length ? `, mean ${means.join(", ")}` : ""}`, closed,
        toggle: () => { if (closed) groups.delete(name); else groups.add(name); arrange(); } });
      if (!closed) shown.push(...members);
    }
    return shown;
  }

  function showChosen() {
    compare.hidden = chosen.size === 0;
    compare.textContent = `Compare ${chosen.size}`;
    compare.href = `#/compare?runs=${[...chosen].map((word) => word.slice(0, 12)).join(",")}`;
  }

  function paintTools() {
    const all = ["name", "status", "progress", ...Object.keys(FACTS).filter((key) => !["name", "status", "progress"].includes(key)), ...metrics, ...settings];
    const shown = shownColumns();
    const marks = all.map((key) => {
      const mark = h("input", { type: "checkbox", checked: shown.includes(key), onchange: () => {
        const now = shownColumns();
        wanted.columns = mark.checked ? all.filter((name) => now.includes(name) || name === key) : now.filter((name) => name !== key);
        keep();
        grid.setColumns(["chosen", ...shownColumns()].map(columnOf));
      } });
      return h("label", { class: "mark" }, mark, " ", columnOf(key).title);
    });
    replace(tools,
      h("label", { class: "field grow" }, h("span", {}, "Filter"), filter),
      choice("Group by", [["", "nothing"], ...["status", "method", "name", "seed", "sweeps", ...settings, ...metrics].map((key) => [key, columnOf(key).title])], wanted.group,
        (value) => { wanted.group = value; groups = new Set(); keep(); arrange(); }),
      h("details", { class: "menu" }, h("summary", { class: "button" }, "Columns"), h("div", { class: "marks" }, marks)),
      compare, count);
  }

  async function load() {
    const content = await ask("runs");
    const { columns } = content;
    metrics = Object.keys(content.metrics).sort((a, b) => rank(a) - rank(b));
    settings = Object.keys(content.settings);
    const names = Object.keys(columns);
    rows = columns.name.map((_, place) => {
      const row = { metrics: {}, settings: {} };
      for (const name of names) row[name] = columns[name][place];
      for (const name of metrics) row.metrics[name] = content.metrics[name][place];
      for (const name of settings) {
        const own = content.settings[name].own[place];
        if (own >= 0) row.settings[name] = content.settings[name].values[own];
      }
      return row;
    });
    first = FIRST_METRICS.filter((name) => 2 * rows.filter((row) => known(row.metrics[name])).length > rows.length).slice(0, 3);
    const menu = tools.querySelector("details")?.open;
    if (!menu) paintTools();
    grid.setColumns(["chosen", ...shownColumns()].map(columnOf));
    showChosen();
    arrange();
  }
  const rank = (name) => { const place = FIRST_METRICS.indexOf(name); return place < 0 ? (isShare(name) ? 50 : 90) : place; };

  function changed(change) {
    if (change.trouble) return;
    if (change.reload) {
      if (!timer) timer = setTimeout(() => { timer = null; load().catch(() => {}); }, 300);
      return;
    }
    const byFingerprint = new Map(rows.map((row) => [row.fingerprint, row]));
    for (const { totals, ...news } of change.runs) {
      const row = byFingerprint.get(news.fingerprint);
      if (row) Object.assign(row, news, totals);
      else { changed({ reload: true }); return; }
    }
    if (change.runs.some((run) => Object.keys(run.metrics).some((name) => !metrics.includes(name)))) { changed({ reload: true }); return; }
    arrange();
  }

  await load();
  return { changed, close: () => { grid.close(); clearTimeout(timer); } };
}
