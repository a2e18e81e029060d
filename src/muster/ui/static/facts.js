// Costs and disclosures, events, configuration and how to repeat it.

import { ask } from "./api.js";
import { choice, h, replace, table } from "./dom.js";
import { bytes, duration, moment, number } from "./format.js";

const COSTS = {
  client_trainings: ["client trainings", number], local_steps: ["local steps", number], samples: ["samples trained on", number],
  probe_samples: ["samples run through the model to answer questions", number], bytes_down: ["sent to clients", bytes], bytes_up: ["sent by clients", bytes],
  server_seconds: ["server's time for selection and aggregation", duration], virtual_seconds: ["virtual time", duration], seconds: ["time on this machine", duration],
  wasted_trainings: ["wasted trainings", number], wasted_bytes: ["wasted bytes", bytes], wasted_seconds: ["clients' wasted virtual time", duration],
};

export async function costsPart(box, facts) {
  async function load(now = facts) {
    const found = await ask(`run/${facts.fingerprint}/costs`), rounds = Math.max(1, now.done);
    replace(box, h("div", { class: "cards" },
      h("div", { class: "card" }, h("h2", {}, "Costs"), table(["what", "#in all", "#a round"],
        Object.entries(COSTS).filter(([name]) => found.total[name]).map(([name, [title, shown]]) => [title, shown(found.total[name]), shown(name.includes("seconds") || name.includes("bytes") ? found.total[name] / rounds : Math.round((10 * found.total[name]) / rounds) / 10)]), "Costs")),
      h("div", { class: "card" }, h("h2", {}, "What left the clients"), found.disclosed.length
        ? table(["kind of information", "#times", "#in rounds"], found.disclosed.map((own) => [own.kind, number(own.times), number(own.rounds)]), "Disclosures")
        : h("p", { class: "quiet" }, "Nothing was disclosed.")),
      found.filtered.length ? h("div", { class: "card" }, h("h2", {}, "What filters did to updates"),
        table(["filter", "#saw", "#changed", "#refused"], found.filtered.map((own) => [own.filter, number(own.seen), number(own.changed), number(own.refused)]), "Filters")) : null));
  }
  await load();
  return { refreshed: load };
}

export async function eventsPart(box, facts) {
  let kind = "", rows = [];
  const tools = h("div", { class: "tools" }), list = h("div", { class: "events" });
  replace(box, tools, list);
  async function load(before = null) {
    const found = await ask(`run/${facts.fingerprint}/events`, { kind, before });
    rows = before === null ? found.events : [...rows, ...found.events];
    const all = Object.values(found.counts).reduce((a, b) => a + b, 0), wanted = kind ? found.counts[kind] ?? 0 : all;
    if (!tools.contains(document.activeElement)) replace(tools, choice("Show", [["", `everything (${number(all)})`], ...Object.entries(found.counts).map(([name, times]) => [name, `${name} (${number(times)})`])], kind, (value) => { kind = value; load(); }));
    replace(list, table(["#round", "what", "#client", "detail", "when"], rows.map((own) =>
      [own.round ? number(own.round) : "", h("span", { class: `event ${own.kind.replace(" ", "-")}` }, own.kind), own.client === null ? "" : h("a", { href: `#/run/${facts.fingerprint}/clients/${own.client}` }, String(own.client)), own.detail, moment(own.time)]), "Events, latest first"),
    rows.length < wanted ? h("button", { type: "button", onclick: () => load(rows.at(-1).id) }, "Earlier ones") : null);
  }
  await load();
  return { refreshed: () => load() };
}

export async function configurationPart(box, facts) {
  const { config } = facts, command = config.commands.join("\n");
  const copied = h("span", { class: "quiet", role: "status" });
  const copy = (text) => h("button", { type: "button", onclick: async () => {
    try { await navigator.clipboard.writeText(text); copied.textContent = "Copied."; } catch { copied.textContent = "Mark the text and copy it: the browser does not let the page."; }
  } }, "Copy");
  replace(box, h("div", { class: "cards" },
    h("div", { class: "card" }, h("h2", {}, "Settings"), h("pre", { tabindex: "0" }, config.toml), copy(config.toml)),
    h("div", { class: "card" }, h("h2", {}, "How to repeat it"), config.commands.length
      ? [h("p", {}, "With ", h("code", {}, config.file), ":"), h("pre", { tabindex: "0" }, config.content), copy(config.content), h("p", {}, "this runs it again, with the same bits on the same platform:"), h("pre", { tabindex: "0" }, command), copy(command)]
      : h("p", {}, "Some of its parts were objects made in Python: repeat it with the script that made them."),
    copied),
    h("div", { class: "card" }, h("h2", {}, "Where it ran"), table(["what", "value"], [["code", facts.code_version], ...Object.entries(facts.environment),
      ["process", `${facts.pid} on ${facts.host}`], ["begun", moment(facts.started)], ["ended", moment(facts.ended)], ["fingerprint", facts.fingerprint], ["sweeps", facts.sweeps.join(", ") || "–"]], "Environment"))));
  return {};
}
