// One run: its head, and a part of it below.

import { ask, tell } from "./api.js";
import { h, loading, replace, trouble } from "./dom.js";
import { bytes, duration, metricName, metricText, moment, number } from "./format.js";
import { progressBar, statusSign } from "./runs.js";
import { curvesPart } from "./curves.js";
import { mapPart } from "./map.js";
import { clientsPart } from "./clients.js";
import { configurationPart, costsPart, eventsPart } from "./facts.js";
import { timelinePart } from "./timeline.js";
import { federationPart } from "./federation.js";

const PARTS = {
  curves: ["Curves", curvesPart], map: ["Selection map", mapPart], clients: ["Clients", clientsPart], federation: ["Federation", federationPart],
  timeline: ["Timeline", timelinePart], costs: ["Costs", costsPart], events: ["Events", eventsPart], configuration: ["Configuration", configurationPart],
};

export async function runView(box, words, params, about) {
  const [fingerprint] = words;
  let facts = await ask(`run/${fingerprint}`), part = null, name = "", busy = false, again = false;
  const head = h("div", { class: "run-head" }), tabs = h("nav", { class: "tabs", "aria-label": "Parts of the run" }), inside = h("section", {});
  replace(box, head, tabs, inside);

  function paintHead() {
    const told = Object.entries(facts.metrics).filter(([metric]) => ["accuracy", "loss", "client_accuracy_worst_tenth", "worst_group_accuracy"].includes(metric));
    const cards = [
      ...told.map(([metric, value]) => [metricName(metric), metricText(metric, value)]),
      ["client trainings", number(facts.totals.client_trainings ?? 0)],
      ["sent", bytes(facts.totals.bytes ?? 0)],
      facts.totals.virtual_seconds ? ["virtual time", duration(facts.totals.virtual_seconds)] : [facts.status === "running" ? "trained for" : "took", duration(facts.totals.seconds ?? 0)],
    ];
    const focused = head.contains(document.activeElement) ? document.activeElement.id : "";
    replace(head,
      h("p", { class: "crumbs" }, h("a", { href: "#/runs" }, "← All runs")),
      h("h1", {}, facts.name || "run"),
      h("p", { class: "facts" }, statusSign(facts.status), " ", progressBar(facts.done, facts.rounds),
        facts.status === "running" && facts.left ? h("span", {}, `${duration(facts.left)} left`) : null,
        h("span", {}, `seed ${facts.seed}`), h("span", {}, [facts.method, facts.aggregation].filter(Boolean).join(" + ")),
        h("span", { class: "quiet" }, `begun ${moment(facts.started)}`), h("span", { class: "quiet" }, facts.fingerprint.slice(0, 8)),
        about.control && facts.status === "running" ? h("button", { type: "button", id: "stop", disabled: facts.stopping, onclick: stop },
          facts.stopping ? "Stops after this round…" : "Stop after this round") : null),
      facts.error ? h("p", { class: "trouble lines" }, facts.error) : null,
      facts.status === "interrupted" ? h("p", { class: "trouble" }, "Its process has ended without a word: it was killed, or the machine went down. Its rounds are kept; the command that began it continues it with ", h("code", {}, "--resume"), ".") : null,
      h("dl", { class: "figures" }, cards.map(([title, value]) => h("div", {}, h("dt", {}, title), h("dd", {}, value)))));
    if (focused) document.getElementById(focused)?.focus();
  }

  let shown = "";
  function paintTabs() {
    if (shown === (shown = `${name} ${facts.timed}`)) return;
    const focused = tabs.contains(document.activeElement);
    replace(tabs, Object.entries(PARTS).filter(([key]) => key !== "timeline" || facts.timed).map(([key, [title]]) =>
      h("a", { href: `#/run/${fingerprint}/${key}`, "aria-current": key === name ? "page" : null }, title)));
    const current = tabs.querySelector("[aria-current]");
    tabs.scrollLeft = current.offsetLeft - tabs.offsetLeft - 60; // on a phone not all of them are in sight
    if (focused) current.focus({ preventScroll: true });
  }

  async function stop() {
    try { await tell(`run/${fingerprint}/stop`); facts.stopping = true; paintHead(); } catch (error) { head.append(trouble(error)); }
  }

  async function open(rest, query) {
    const [, wanted = "curves", ...more] = rest;
    const next = PARTS[wanted] ? wanted : "curves";
    if (part && next === name && part.moved) { part.moved(more, query); return; }
    part?.close?.();
    part = null;
    name = next;
    paintHead();
    paintTabs();
    replace(inside, loading());
    const fresh = h("div", {});
    try {
      const made = await PARTS[next][1](fresh, facts, more, query);
      if (name !== next) { made?.close?.(); return; }
      part = made;
      replace(inside, fresh);
      made?.shown?.();
    } catch (error) {
      if (name === next) replace(inside, trouble(error));
    }
  }

  async function refresh() {
    if (busy) { again = true; return; }
    busy = true;
    try {
      Object.assign(facts, await ask(`run/${fingerprint}`));
      paintHead();
      paintTabs();
      await part?.refreshed?.(facts);
    } catch (error) {
      if (error.status === 404) { part?.close?.(); replace(box, trouble(error), h("p", {}, h("a", { href: "#/runs" }, "To all runs"))); }
    }
    busy = false;
    if (again) { again = false; setTimeout(refresh, 200); }
  }

  function changed(change) {
    if (change.trouble) return;
    const own = change.runs.find((run) => run.fingerprint === facts.fingerprint);
    if (own) facts.left = own.left;
    if (own || change.reload) refresh();
  }

  await open(words, params);
  return { changed, moved: open, close: () => part?.close?.() };
}
