const SVG = "http://www.w3.org/2000/svg";
const tip = document.getElementById("tip");

// --- making elements; text is always set as text ---
function make(name, attributes = {}, ...children) {
  const isDrawn = ["svg", "g", "path", "line", "rect", "text", "circle"].includes(name);
  const element = isDrawn ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  for (const child of children.flat()) if (child !== null) element.append(child);
  return element;
}
function table(columns, rows) {
  const head = make("tr", {}, columns.map(c => make("th", {class: c.kind || ""}, c.title)));
  const body = rows.map(row => make("tr", {class: row.kind || ""}, columns.map(c => {
    const shown = c.show(row);
    return make("td", {class: c.kind || ""}, shown === undefined || shown === null ? "" : shown);
  })));
  return make("table", {}, make("thead", {}, head), make("tbody", {}, body));
}
const card = (...children) => make("div", {class: "card"}, ...children);
const quiet = text => make("p", {class: "quiet"}, text);
function explain(element, text) {
  element.addEventListener("pointermove", event => {
    tip.textContent = typeof text === "function" ? text(event) : text;
    tip.style.display = "block";
    const left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
    tip.style.left = left + "px";
    tip.style.top = Math.max(4, event.clientY - tip.offsetHeight - 10) + "px";
  });
  element.addEventListener("pointerleave", () => { tip.style.display = "none"; });
  return element;
}

// --- numbers for people ---
function bytes(count) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (Math.abs(count) >= 1024 && unit < 4) { count /= 1024; unit += 1; }
  return (unit === 0 || Math.abs(count) >= 100 ? count.toFixed(0) : count.toPrecision(3)) + " " + units[unit];
}
function seconds(time) {
  if (time === 0) return "0";
  if (time >= 1) return time.toPrecision(3) + " s";
  return time >= 1e-3 ? (time * 1e3).toPrecision(3) + " ms" : (time * 1e6).toPrecision(3) + " µs";
}
function flops(count) {
  const units = ["", " K", " M", " G", " T", " P", " E"];
  let unit = 0;
  while (count >= 1000 && unit < 6) { count /= 1000; unit += 1; }
  return count.toPrecision(3) + units[unit] + "FLOP";
}
const count = number => number.toLocaleString("en");
function change(before, after, show) {
  if (before === after) return show(after);
  return make("span", {class: after < before ? "less" : "more"},
    make("span", {}, show(before) + " →"), " ", make("span", {}, show(after)));
}

function chartWidth() {
  return Math.max(320, Math.min(1180, document.documentElement.clientWidth) - (innerWidth > 900 ? 80 : 60));
}
function redrawn(draw) {
  const spot = make("div", {}, draw());
  let width = innerWidth;
  addEventListener("resize", () => {
    if (width !== innerWidth) spot.replaceChildren(...[draw()].flat());
    width = innerWidth;
  });
  return spot;
}
function legend(entries) {
  return make("div", {class: "legend"}, entries.map(([color, text]) => make("span", {}, make("i", {style: `background:${color}`}), text)));
}
