// All runs: filter, sort, group, watch, choose some to compare.

import { ask } from "./api.js";
import { choice, h, replace } from "./dom.js";
import { bytes, duration, isShare, known, metricName, metricText, moment, number, shortMetricName } from "./format.js";
import { Grid, sorted } from "./grid.js";

const FIRST_METRICS = ["accuracy", "client_accuracy_worst_tenth", "worst_group_accuracy", "loss"];
const FACTS = {
  name: { title: "run" },
  status: { title: "status", width: 145 },
  progress: { title: "rounds" },
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

// On a phone the first score shall be in sight beside the name and its sign.
function nameWidth(rows) {
  const wanted = widthOf(rows.map((row) => row.name));
  return narrow() ? Math.min(wanted + 20, Math.max(160, innerWidth - 152)) : wanted;
}

// Room for a bar and both numbers of the longest run.
function progressWidth(rows) {
  const longest = rows.reduce((most, row) => Math.max(most, row.rounds || 0), 0);
  return Math.ceil(letter() * (2 * number(longest).length + 1)) + (narrow() ? 94 : 104);
}

// Room for a title, which is bold, and the sign of its order.
const headWidth = (title) => Math.ceil(1.06 * letter() * title.length) + (narrow() ? 27 : 44);

// On a phone, where the column of states is out of sight, their signs stand before the names.
function signOf(status) {
  return h("span", { class: `status ${status}`, "aria-hidden": "true" }, h("span", {}, SIGNS[status] || ""), " ");
}

export function statusSign(status) {
  return h("span", { class: `status ${status}` }, h("span", { "aria-hidden": "true" }, SIGNS[status] || ""), ` ${status}`);
}

export function progressBar(done, rounds) {
  const bar = h("progress", { max: String(rounds || 1), "aria-label": `${done} of ${rounds} rounds` });
  bar.value = done;
  return h("span", { class: "progress" }, bar, ` ${number(done)}/${number(rounds)}`);
}

// The two settings that most often tell runs of one name and seed apart.
function tellingApart(rows, settings) {
  const known_ = new Map(), times = new Map(settings.map((key) => [key, 0]));
  for (const row of rows) {
    const key = `${row.seed} ${row.name}`, other = known_.get(key);
    if (!other) { known_.set(key, row); continue; }
    for (const name of settings) if (row.settings[name] !== other.settings[name]) times.set(name, times.get(name) + 1);
  }
  return [...settings].sort((a, b) => times.get(b) - times.get(a)).slice(0, 2);
}

export async function runsView(box, params) {
  let rows = [], settings = [], values = {}, telling = [], metrics = [], first = [], groups = new Set(), timer = null;
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
  const menu = () => tools.querySelector("details.menu");
  tools.addEventListener("keydown", (event) => { if (event.key === "Escape" && menu()?.open) { menu().open = false; menu().firstChild.focus(); } });
  box.addEventListener("pointerdown", (event) => { if (menu()?.open && !menu().contains(event.target)) menu().open = false; });

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
    if (key === "name") return { key, ...FACTS.name, width: nameWidth(rows), value: (row) => row.name,
      cell: (row) => [narrow() ? signOf(row.status) : null, h("a", { href: `#/run/${row.fingerprint}`, "data-focus": row.fingerprint, title: row.name }, row.name || "run")] };
    if (key === "status") return { key, ...FACTS.status, value: (row) => row.status, cell: (row) => statusSign(row.status) };
    if (key === "progress") return { key, ...FACTS.progress, width: progressWidth(rows), value: (row) => row.done / (row.rounds || 1), cell: (row) => progressBar(row.done, row.rounds) };
    if (key === "method") return { key, ...FACTS.method, width: widthOf(rows.map((row) => row.method)), value: (row) => row.method, text: (row) => row.method || "–" };
    if (FACTS[key]) return { key, width: headWidth(FACTS[key].title), text: (row) => (known(row[key]) ? String(row[key]) : "–"), ...FACTS[key], value: (row) => row[key] };
    if (metrics.includes(key)) return { key, title: shortMetricName(key), number: true, width: Math.max(narrow() ? 85 : 105, headWidth(shortMetricName(key))), value: (row) => row.metrics[key], text: (row) => metricText(key, row.metrics[key]) };
    return { key, title: shortKey(key), width: Math.max(headWidth(shortKey(key)), Math.min(220, widthOf(values[key]))), value: (row) => asNumber(row.settings[key]), text: (row) => row.settings[key] ?? "–" };
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
    const moving = rows.some((row) => row.status === "running");
    return ["name", "status", "progress", ...(moving ? ["left"] : []), "seed", ...first.slice(0, 2), ...telling, "method", ...first.slice(2), ...REST];
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
        return values.length ? `${metricName(metric)} ${spread(metric, values)}` : "";
      }).filter(Boolean);
      shown.push({ group: name, title: `${narrow() ? "" : `${column.title} `}${name}: ${members.length} ${members.length === 1 ? "run" : "runs"}${means.length ? `, mean ${means.join(", ")}` : ""}`, closed,
        toggle: () => { if (closed) groups.delete(name); else groups.add(name); arrange(); } });
      if (!closed) shown.push(...members);
    }
    return shown;
  }

  // A mean alone would hide a run that has failed: from the lowest to the highest stands beside it.
  function spread(metric, values) {
    const mean = metricText(metric, values.reduce((a, b) => a + b, 0) / values.length);
    return values.length > 1 ? `${mean} (${metricText(metric, Math.min(...values)).replace(" %", "")} to ${metricText(metric, Math.max(...values))})` : mean;
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
    values = Object.fromEntries(settings.map((name) => [name, content.settings[name].values]));
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
    telling = tellingApart(rows, settings.filter((key) => !/^(selection|rounds|devices)/.test(key)));
    first = FIRST_METRICS.filter((name) => 2 * rows.filter((row) => known(row.metrics[name])).length > rows.length).slice(0, 3);
    if (!menu()?.open) paintTools();
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
