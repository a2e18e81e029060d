// Curves of a run against rounds, client trainings, bytes, time.

import { ask } from "./api.js";
import { choice, h, replace, table } from "./dom.js";
import { isShare, metricName, metricText, number, percentMark, titled, unitNames } from "./format.js";
import { Chart } from "./chart.js";

const FIRST = ["accuracy", "client_accuracy_mean", "client_accuracy_worst_tenth", "client_accuracy_worst", "worst_group_accuracy"];

export async function curvesPart(box, facts) {
  if (!facts.metric_names.length) return waiting(box, facts);
  const shares = facts.metric_names.filter(isShare), others = facts.metric_names.filter((name) => !isShare(name));
  const order = [...FIRST, ...shares.filter((name) => !FIRST.includes(name))];
  let unit = "round", window = null, shown = shares.filter((name) => FIRST.includes(name));
  const controls = h("div", { class: "tools" }), note = h("p", { class: "quiet" });
  const zoomed = (from, to) => { if (unit === "round") { window = [Math.max(1, Math.floor(from)), Math.ceil(to)]; load(); } };
  const accuracy = new Chart({ label: "Accuracies", height: 320, text: (value) => metricText("accuracy", value), mark: percentMark, onzoom: zoomed });
  const rest = others.map((name) => [name, new Chart({ label: metricName(name), height: 320, text: number, onzoom: zoomed })]);
  const options = h("details", { class: "options", open: innerWidth > 700 && innerHeight > 700 }, h("summary", {}, "What is drawn, and against what"), controls);
  replace(box, options, h("div", { class: "charts" }, shares.length ? h("div", { class: "card" }, h("h2", {}, "Accuracy"), accuracy.box) : null,
    rest.map(([name, chart]) => h("div", { class: "card" }, h("h2", {}, titled(metricName(name))), chart.box))), note, groups(facts));

  function paintControls(units) {
    const marks = shares.map((name) => {
      const mark = h("input", { type: "checkbox", checked: shown.includes(name), onchange: () => {
        shown = shares.filter((own) => (own === name ? mark.checked : shown.includes(own)));
        load();
      } });
      return h("label", { class: "mark" }, mark, " ", metricName(name));
    });
    replace(controls, choice("Against", units.map((own) => [own, unitNames[own]]), unit, (value) => { unit = value; window = null; load(); }),
      h("fieldset", { class: "marks" }, h("legend", {}, "Accuracies"), marks),
      window ? h("button", { type: "button", onclick: () => { window = null; load(); } }, `Rounds ${window[0]}–${window[1]}: show all`) : null);
  }

  async function load() {
    const params = { metrics: [...shown, ...others].join(",") };
    if (window) [params.from, params.to] = window;
    const found = await ask(`run/${facts.fingerprint}/curves`, params);
    const x = unit === "round" ? found.rounds : found.work[unit];
    const units = ["round", ...Object.keys(found.work)];
    if (!controls.contains(document.activeElement) || !controls.childElementCount || Boolean(window) !== controls.querySelectorAll("button").length > 0) paintControls(units);
    accuracy.set(x, shown.map((name) => ({ name: metricName(name), values: found.metrics[name], place: order.indexOf(name) })), unit);
    for (const [name, chart] of rest) chart.set(x, [{ name: metricName(name), values: found.metrics[name] }], unit);
    note.textContent = found.thinned ? "Long curves are thinned out: of every stretch its lowest and its highest point are shown. Drag across rounds to look closer." : "";
  }

  await load();
  return { shown: load, refreshed: load, close: () => { accuracy.close(); rest.forEach(([, chart]) => chart.close()); } };
}

function waiting(box, { status }) {
  let made = null;
  replace(box, h("p", { class: "quiet" }, status === "running" || status === "planned" ? "No round was evaluated yet." : "No round was evaluated before the run ended."));
  return {
    close: () => made?.close(),
    async refreshed(now) {
      if (made) await made.refreshed(now);
      else if (now.metric_names.length) { made = await curvesPart(box, now); await made.shown?.(); }
    },
  };
}

function groups(facts) {
  if (!facts.groups.length) return null;
  const rows = [...facts.groups].sort((a, b) => a[2] - b[2]).map(([label, attribute, accuracy, samples]) =>
    [String(label), String(attribute), metricText("accuracy", accuracy), number(samples)]);
  return h("div", { class: "card" }, h("h2", {}, "Groups of the test set, worst first"), table(["#class", "#attribute", "#accuracy", "#samples"], rows, "Accuracy by group"));
}
