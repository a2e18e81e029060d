// The page: which view is shown, what has changed, light and dark.

import { ask, listen, takeToken } from "./api.js";
import { h, loading, replace, trouble } from "./dom.js";
import { runsView } from "./runs.js";
import { runView } from "./run.js";
import { compareView } from "./compare.js";

const main = document.getElementById("main");
const about = { control: false };
let view = null;
let place = "";
let missed = false; // whether something has changed while a view was being loaded

function decoded(word) {
  try { return decodeURIComponent(word); } catch { return word; } // an address that was cut short in a message
}

function parsed() {
  const [path, query = ""] = location.hash.replace(/^#/, "").split("?");
  return { words: path.split("/").filter(Boolean).map(decoded), params: new URLSearchParams(query) };
}

async function show() {
  const { words, params } = parsed(), led = place !== "";
  const [name = "runs", ...rest] = words;
  for (const link of document.querySelectorAll("header nav a"))
    if (link.hash === `#/${name === "run" ? "runs" : name}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  const key = name === "run" ? `run/${rest[0]}` : name;
  if (view && key === place && view.moved) { view.moved(rest, params); return; }
  view?.close?.();
  view = null;
  place = key;
  const box = h("div", {}, loading());
  replace(main, box);
  scrollTo(0, 0);
  let made;
  try {
    if (name === "run" && rest[0]) made = await runView(box, rest, params, about);
    else if (name === "compare") made = await compareView(box, params);
    else made = await runsView(box, params);
  } catch (error) {
    made = {};
    if (error.status === 503 || error.status === 0) { showTrouble(error); replace(box, h("p", { class: "quiet" }, `This view appears by itself once the ${error.status ? "store can be read" : "server answers"}.`)); }
    else replace(box, trouble(error), error.status === 401 ? tokenForm() : null);
  }
  if (!box.isConnected) { made.close?.(); return; } // somebody went elsewhere meanwhile
  view = made;
  if (led && document.activeElement === document.body) main.focus({ preventScroll: true }); // the link that led here has gone
  if (missed) view.changed?.({ runs: [], reload: true, trouble: null });
  missed = false;
  const heading = main.querySelector("h1");
  document.title = heading ? `${heading.textContent} · Muster` : "Muster";
}

function tokenForm() {
  const field = h("input", { type: "password", autocomplete: "off", "aria-label": "Token" });
  const enter = () => { location.href = `/?token=${encodeURIComponent(field.value.trim())}${location.hash}`; };
  field.addEventListener("keydown", (event) => { if (event.key === "Enter") enter(); });
  return h("div", { class: "tools" }, h("label", { class: "field" }, h("span", {}, "Token"), field),
    h("button", { type: "button", onclick: enter }, "Enter"));
}

function showTrouble(problem) {
  const box = document.getElementById("trouble");
  box.hidden = !problem;
  replace(box, problem ? trouble(problem) : null);
}

function heard(change) {
  showTrouble(change.trouble);
  if (!view) missed = true;
  else if (view.changed) view.changed(change);
  else if (change.reload && !change.trouble) show();
}

const GONE = { problem: "The page's server does not answer: what is shown may have changed since.", fix: "wait if the network sleeps; otherwise start `muster ui` again and open the address that it prints" };
const ANOTHER = { problem: "The server at this address wants another token: what is shown may have changed since.", fix: "open the address that `muster ui` printed when it was started last" };
let wasLive = true, everLive = false;
function state(live, problem = null) {
  const sign = document.getElementById("live");
  sign.textContent = live ? "live" : "not connected";
  sign.classList.toggle("on", live);
  if (live) heard({ runs: [], reload: !wasLive, trouble: problem });
  else if (!wasLive && everLive) showTrouble(problem?.status === 401 ? ANOTHER : GONE); // a moment without an answer is not worth a word
  wasLive = live;
  everLive ||= live;
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
