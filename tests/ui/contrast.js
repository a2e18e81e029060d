// Texts, also those that fields show while they are empty, whose contrast with their ground is below 4.5 to 1, the smallest that WCAG AA allows for normal text;
// and signs of legends below 3 to 1.
() => {
  const parts = (css) => {
    const found = css.match(/[\d.]+/g).map(Number);
    return found.length === 4 && found[3] === 0 ? null : found;
  };
  const share = (value) => (value / 255 <= 0.03928 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4);
  const light = ([r, g, b]) => 0.2126 * share(r) + 0.7152 * share(g) + 0.0722 * share(b);
  const bad = [];
  for (const element of document.querySelectorAll("body *")) {
    const style = getComputedStyle(element);
    const says = element.placeholder || [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
    const seen = style.visibility !== "hidden" && element.getClientRects().length;
    if (!says || !seen || element.disabled || element.tagName === "OPTION" || element.closest("svg")) continue;
    let ground = null;
    for (let up = element; up && !ground; up = up.parentElement) ground = parts(getComputedStyle(up).backgroundColor);
    const { color } = element.placeholder ? getComputedStyle(element, "::placeholder") : style;
    const [one, other] = [light(parts(color) || [0, 0, 0]), light(ground || [255, 255, 255])];
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (ratio < 4.5) bad.push(`${element.tagName}.${element.className} ${(element.placeholder || element.textContent).trim().slice(0, 30)} ${ratio}`);
  }
  // What a colour alone tells: 3 to 1 is the least for that, on the legend's ground and on the picture's.
  for (const key of document.querySelectorAll(".key")) for (const name of ["--back", "--card"]) {
    const hex = getComputedStyle(document.documentElement).getPropertyValue(name).trim().slice(1);
    const ground = [0, 2, 4].map((place) => Number.parseInt(hex.slice(place, place + 2), 16));
    const [one, other] = [light(parts(getComputedStyle(key, "::before").backgroundColor)), light(ground)];
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (ratio < 3) bad.push(`sign of ${key.textContent} ${ratio} on ${name}`);
  }
  return bad;
}
