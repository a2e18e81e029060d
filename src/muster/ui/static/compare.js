// Problems × methods: who is best, by how much, how sure; at equal work where that is asked for.

import { ask } from "./api.js";
import { choice, h, loading, replace, table, trouble } from "./dom.js";
import { isShare, metricName, metricText, number, percentMark, shortNumber, unitNames } from "./format.js";
import { Chart, together } from "./chart.js";

const KEYS = ["sweep", "runs", "metric", "per", "at", "last", "baseline", "unfinished", "methods", "problems"];
const BUDGETS = [["", "at the end"], ["client_trainings", "at equal client trainings"], ["bytes", "at equal bytes"], ["round", "at equal rounds"], ["virtual_seconds", "at equal virtual time"]];

export async function compareView(box, params) {
  const wanted = Object.fromEntries(KEYS.map((key) => [key, params.get(key) || ""]));
  let charts = [], found = null, sweeps = [], metrics = [], timer = null, places = new Map();
  const tools = h("div", { class: "tools" }), parts = h("div", {}), said = h("span", { class: "quiet", role: "status" });
  replace(box, h("h1", {}, "Compare"), h("details", { class: "options", open: innerWidth > 700 }, h("summary", {}, "What is compared, and how"), tools), parts);

  function keep() {
    const words = new URLSearchParams(Object.entries(wanted).filter(([, value]) => value));
    history.replaceState(null, "", `#/compare${words.size ? `?${words}` : ""}`);
  }
  const change = (key, value, ask_ = true) => { wanted[key] = value; keep(); if (ask_) load(); else paint(); };

  function paintTools() {
    const units = [...new Set((found?.problems ?? []).flatMap((own) => own.units ?? []))];
    const cases = [...new Set((found?.problems ?? []).flatMap((own) => Object.keys(own.fingerprints ?? {})))];
    const words = (key, title) => h("label", { class: "field" }, h("span", {}, title), h("input", { type: "search", value: wanted[key], "data-key": key, placeholder: "words", oninput: (event) => change(key, event.target.value, false) }));
    const unfinished = h("input", { type: "checkbox", checked: wanted.unfinished === "1", onchange: () => change("unfinished", unfinished.checked ? "1" : "") });
    replace(tools,
      wanted.runs ? h("span", { class: "chip" }, `${wanted.runs.split(",").length} chosen runs `, h("button", { type: "button", onclick: () => change("runs", "") }, "all instead"))
        : choice("Sweep", [["", "all runs"], ...sweeps], wanted.sweep, (value) => change("sweep", value)),
      choice("Metric", metrics.map((name) => [name, metricName(name)]), wanted.metric || "accuracy", (value) => change("metric", value)),
      choice("Scores", BUDGETS.filter(([unit]) => !unit || units.includes(unit)), wanted.at, (value) => change("at", value)),
      choice("Curves against", (units.length ? units : ["round"]).map((unit) => [unit, unitNames[unit]]), wanted.per || "round", (value) => change("per", value)),
      choice("Mean of the last", ["1", "3", "5", "10"].map((last) => [last, last === "1" ? "evaluation" : `${last} evaluations`]), wanted.last || "1", (value) => change("last", value)),
      choice("Baseline", [["", "chosen by itself"], ...cases], wanted.baseline, (value) => change("baseline", value)),
      words("methods", "Methods"), words("problems", "Problems"),
      h("label", { class: "mark" }, unfinished, " unfinished, too"),
      h("button", { type: "button", onclick: async () => {
        try { await navigator.clipboard.writeText(location.href); said.textContent = "Copied."; } catch { said.textContent = "The address of this page reproduces the view."; }
      } }, "Copy the link to this view"), said);
  }

  const fits = (key, name) => wanted[key].toLowerCase().split(/\s+/).filter(Boolean).every((word) => name.toLowerCase().includes(word));

  function paint() {
    charts.forEach((chart) => chart.close());
    charts = [];
    const shown = found.problems.filter((own) => own.trouble || fits("problems", own.problem));
    const waiting = [];
    replace(parts, h("p", { class: "quiet" }, `${found.problems.length} ${found.problems.length === 1 ? "problem" : "problems"}${shown.length < found.problems.length ? `, ${shown.length} shown` : ""}`),
      remarks(found.remarks),
      h("div", { class: "charts" }, shown.map((own) => {
        if (own.trouble) return h("section", { class: "card" }, h("h2", {}, own.problem), trouble({ problem: own.trouble, expected: own.expected, fix: own.fix }));
        const lines = own.lines.filter((line) => fits("methods", line.name));
        const percent = own.column.percent;
        const chart = new Chart({ label: own.column.title, height: 300, unit: wanted.per || "round", text: percent ? (value) => metricText("accuracy", value) : number, mark: percent ? percentMark : shortNumber });
        charts.push(chart);
        waiting.push(() => {
          const [x, drawn] = together(lines.map((line) => ({ name: line.name, x: line.work, values: line.mean, ...(line.seeds > 1 ? { low: line.low, high: line.high } : {}), place: placeOf(line.name), colours: line.colours })));
          chart.set(x, drawn, wanted.per || "round");
        });
        return h("section", { class: "card problem" }, h("h2", {}, own.problem), h("p", { class: "headline" }, own.headline[0]), h("p", {}, own.headline.slice(1).join(" ")),
          lines.length ? [chart.box, h("p", { class: "quiet" }, "Lines: means over seeds; bands: from the lowest to the highest seed, as far as all of them go.")] : null,
          Object.entries(own.tables).map(([name, content]) => dataTable(name, content)),
          remarks(own.remarks));
      })));
    waiting.forEach((draw) => draw());
  }

  function remarks(texts) {
    return texts.length ? h("details", { open: true }, h("summary", {}, `Remarks (${texts.length})`), h("ul", { class: "warnings" }, texts.map((text) => h("li", {}, text)))) : null;
  }

  function placeOf(name) {
    if (!places.has(name)) places.set(name, places.size);
    return places.get(name);
  }

  function dataTable(name, content) {
    const titles = content.columns.map((column) => `${column.number ? "#" : ""}${column.heading}`);
    const rows = content.rows.filter((row) => fits("methods", row[0].text)).map((row) => row.map(({ text, mark }) => {
      const [, mean, interval] = /^(\S+) (\[.*\])$/.exec(text) ?? [null, text];
      return [mark === "best" ? h("strong", {}, mean) : mark === "second" ? h("u", {}, mean) : mean, interval && h("span", { class: "interval" }, " ", interval)];
    }));
    return h("details", { open: name === "scores" || name === "significance" }, h("summary", {}, content.title), table(titles, rows, content.title),
      content.notes.length ? h("p", { class: "quiet" }, content.notes.join(" ")) : null);
  }

  async function load() {
    const { methods, problems, ...asked } = wanted;
    const focused = tools.contains(document.activeElement) ? document.activeElement.closest(".field")?.firstChild.textContent : null;
    try {
      found = await ask("compare", asked);
      paintTools();
      paint();
    } catch (error) {
      charts.forEach((chart) => chart.close());
      charts = [];
      found = { problems: [], remarks: [] };
      paintTools();
      replace(parts, trouble(error));
    }
    if (focused) [...tools.querySelectorAll(".field")].find((own) => own.firstChild.textContent === focused)?.lastChild.focus({ preventScroll: true });
  }

  replace(parts, loading());
  const all = await ask("runs");
  sweeps = [...new Set(all.columns.sweeps.flatMap((words) => words.split(", ")).filter(Boolean))].sort();
  metrics = Object.keys(all.metrics).sort((a, b) => isShare(b) - isShare(a));
  if (!metrics.length) metrics = ["accuracy"];
  await load();
  return {
    changed: (news) => { if (!news.trouble && (news.reload || news.runs.some((run) => run.status === "complete" || wanted.unfinished)) && !timer) timer = setTimeout(() => { timer = null; load(); }, 1500); },
    moved: (_, now) => { for (const key of KEYS) wanted[key] = now.get(key) || ""; load(); },
    close: () => { clearTimeout(timer); charts.forEach((chart) => chart.close()); },
  };
}
