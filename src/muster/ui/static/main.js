// The page: which view is shown, what has changed, light and dark.

import { ask, listen, takeToken } from "./api.js";
import { h, replace, trouble } from "./dom.js";
import { runsView } from "./runs.js";
import { runView } from "./run.js";
import { compareView } from "./compare.js";

const main = document.getElementById("main");
export const about = { control: false };
let view = null;
let place = "";

function parsed() {
  const [path, query = ""] = location.hash.replace(/^#/, "").split("?");
  return { words: path.split("/").filter(Boolean).map(decodeURIComponent), params: new URLSearchParams(query) };
}

async function show() {
  const { words, params } = parsed();
  const [name = "runs", ...rest] = words;
  for (const link of document.querySelectorAll("header nav a"))
    if (link.hash === `#/${name === "run" ? "runs" : name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  const key = name === "run" ? `run/${rest[0]}` : name;
  if (view && key === place && view.moved) { view.moved(rest, params); return; }
  view?.close?.();
  place = key;
  const box = h("div", {});
  replace(main, box);
  try {
    if (name === "run" && rest[0]) view = await runView(box, rest, params, about);
    else if (name === "compare") view = await compareView(box, params);
    else view = await runsView(box, params);
  } catch (error) {
    view = { close() {} };
    replace(box, trouble(error), error.status === 401 ? tokenForm() : null);
  }
  const heading = main.querySelector("h1");
  document.title = heading ? `${heading.textContent} · Muster` : "Muster";
}

function tokenForm() {
  const field = h("input", { type: "password", autocomplete: "off", "aria-label": "Token" });
  const enter = () => { location.href = `/?token=${encodeURIComponent(field.value.trim())}${location.hash}`; };
  field.addEventListener("keydown", (event) => { if (event.key === "Enter") enter(); });
  return h("p", {}, h("label", { class: "field" }, h("span", {}, "Token"), field), " ",
    h("button", { type: "button", onclick: enter }, "Enter"));
}

function heard(change) {
  const box = document.getElementById("trouble");
  box.hidden = !change.trouble;
  replace(box, change.trouble ? trouble(change.trouble) : null);
  if (change.reload && !change.trouble && !view?.changed) show();
  view?.changed?.(change);
}

let wasLive = true;
function state(live) {
  const sign = document.getElementById("live");
  sign.textContent = live ? "live" : "not connected";
  sign.classList.toggle("on", live);
  if (live && !wasLive) view?.changed?.({ runs: [], reload: true, trouble: null });
  wasLive = live;
}

const THEMES = ["system", "light", "dark"];
function setTheme(theme) {
  if (theme === "system") document.documentElement.removeAttribute("data-theme");
  else document.documentElement.dataset.theme = theme;
  document.querySelector("#theme .label").textContent = `Theme: ${theme}`;
  document.dispatchEvent(new Event("theme"));
}

function start() {
  takeToken();
  const button = document.getElementById("theme");
  let theme = "system";
  try { theme = localStorage.getItem("muster-theme") || "system"; } catch { /* see takeToken */ }
  if (!THEMES.includes(theme)) theme = "system";
  setTheme(theme);
  button.addEventListener("click", () => {
    theme = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    try { localStorage.setItem("muster-theme", theme); } catch { /* see takeToken */ }
    setTheme(theme);
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => document.dispatchEvent(new Event("theme")));
  addEventListener("hashchange", show);
  ask("about").then((facts) => {
    Object.assign(about, facts);
    document.getElementById("place").textContent = facts.workspace;
    document.getElementById("place").title = `Muster ${facts.version}`;
  }).catch(() => {}).finally(show);
  listen(heard, state);
}

start();
