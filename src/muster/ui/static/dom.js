// Elements from data. Text is always text: nothing that a run is called can become markup.

export function h(tag, facts = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(facts)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = value;
    else if (name === "value" || name === "checked" || name === "disabled" || name === "hidden") element[name] = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  add(element, children);
  return element;
}

export function add(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : String(child));
  }
  return element;
}

export function replace(element, ...children) {
  element.replaceChildren();
  return add(element, children);
}

export function svg(tag, facts = {}, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(facts)) element.setAttribute(name, value);
  add(element, children);
  return element;
}

// A choice with its label; `options` are [value, text] or texts.
export function choice(label, options, value, change) {
  const select = h("select", { onchange: () => change(select.value) });
  for (const option of options) {
    const [own, text] = Array.isArray(option) ? option : [option, option];
    select.append(h("option", { value: own }, text));
  }
  select.value = value;
  return h("label", { class: "field" }, h("span", {}, label), select);
}

// A table of texts and elements; columns whose title begins with "#" are numbers.
export function table(titles, rows, caption = "") {
  const numbers = titles.map((title) => title.startsWith("#"));
  const kind = (place) => (numbers[place] ? { class: "number" } : {});
  return h("div", { class: "wide", tabindex: "0", role: "region", "aria-label": caption || "table" },
    h("table", {}, caption && h("caption", { class: "unseen" }, caption),
      h("thead", {}, h("tr", {}, titles.map((title, place) =>
        h("th", { scope: "col", ...kind(place) }, title.replace(/^#/, ""))))),
      h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell, place) => h("td", kind(place), cell)))))));
}

// What 16 pixels are on this screen: letters are larger on a very wide one.
export const rem = () => Number.parseFloat(getComputedStyle(document.documentElement).fontSize);
export const canvasFont = () => `${0.75 * rem()}px system-ui, sans-serif`;

export const isDark = () => getComputedStyle(document.documentElement).colorScheme === "dark";

export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

// `code` in a text that the server wrote, as an element.
export function marked(text) {
  return text.split(/(`[^`]+`)/).map((part) =>
    part.startsWith("`") && part.length > 2 ? h("code", {}, part.slice(1, -1)) : part);
}

export function trouble(error) {
  return h("div", { class: "trouble", role: "alert" },
    h("strong", {}, error.problem || String(error)),
    error.expected && h("p", {}, "Expected: ", error.expected),
    error.fix && h("p", {}, "What to do: ", marked(error.fix)));
}

export function loading(text = "Loading…") {
  return h("p", { class: "quiet", role: "status" }, text);
}
