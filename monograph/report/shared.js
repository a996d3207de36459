const SVG = "http://www.w3.org/2000/svg";

// --- elements; text is always set as text ---
function make(name, attributes = {}, ...children) {
  const isDrawn = ["svg", "g", "path", "line", "rect", "text", "circle"].includes(name);
  const element = isDrawn ? document.createElementNS(SVG, name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  for (const child of children.flat()) if (child !== null && child !== undefined) element.append(child);
  return element;
}
function table(columns, rows) {
  const head = make("tr", {}, columns.map(c => make("th", {class: c.kind || "", scope: "col"}, c.title)));
  const body = rows.map(row => make("tr", {class: row.kind || ""}, columns.map(c => make("td", {class: c.kind || ""}, c.show(row)))));
  return make("table", {}, make("thead", {}, head), make("tbody", {}, body));
}
const card = (...children) => make("div", {class: "card"}, ...children);
const quiet = text => make("p", {class: "quiet"}, text);
// A path breaks after its dots where it is too long for a line.
const modulePath = path => make("code", {}, path ? path.split(/(?<=\.)/).flatMap(part => [part, make("wbr")]) : "(outside of the model)");
const find = id => document.getElementById(id);
function legend(entries) {
  return make("div", {class: "legend"}, entries.map(([color, text]) => make("span", {}, make("i", {style: `background:${color}`}), text)));
}
function choices(label, entries, chosen, choose) {
  const buttons = entries.map(([value, text]) => make("button", {type: "button", value, "data-key": `${label} ${value}`, "aria-pressed": value === chosen}, text));
  for (const button of buttons) {
    button.addEventListener("click", () => {
      for (const each of buttons) each.setAttribute("aria-pressed", each === button);
      choose(button.value);
    });
  }
  return make("div", {class: "switch", role: "group", "aria-label": label}, buttons);
}
function section(id, title, note, ...children) {
  return make("section", {id, "aria-label": title}, make("h2", {}, title), note ? quiet(note) : null, ...children);
}
function contents(sections) {
  return make("nav", {"aria-label": "Sections"}, sections.map(each => make("a", {href: `#${each.id}`}, each.getAttribute("aria-label"))));
}
// A box that opens, whose content is made when it is needed.
function lazyBox(attributes, title, note, fill) {
  const box = make("details", attributes, make("summary", {}, make("b", {}, title), make("span", {}, note)));
  box.fill = () => { if (box.childElementCount === 1) box.append(make("pre", {tabindex: 0, "aria-label": title}, fill())); };
  box.addEventListener("toggle", box.fill);
  return box;
}
// A link into a closed box opens it; `file.py:12` is line 12 of the box `file.py`.
function openTarget() {
  const name = decodeURIComponent(location.hash.slice(1)), box = find(name) || find(name.replace(/:\d+$/, ""));
  if (!box) return;
  if (box.fill) box.fill();
  if (box.matches("details")) box.open = true;
  const target = find(name) || box;
  for (const each of document.querySelectorAll(".target")) each.classList.remove("target");
  if (target !== box) target.classList.add("target");
  target.setAttribute("tabindex", -1);
  target.focus({preventScroll: true});
  target.scrollIntoView({block: target === box ? "start" : "center"});
}
addEventListener("hashchange", openTarget);
// A command with a button that copies it; where a browser does not allow that, the command is selected instead.
function copyable(command, label) {
  const code = make("code", {}, command.split(" ").flatMap((word, index) => [index ? " " : "", make("span", {}, word)])), told = make("span", {class: "quiet", role: "status"});
  const button = make("button", {type: "button", class: "copy", "aria-label": `copy ${label}`}, "copy");
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(command);
      told.textContent = "copied";
    } catch {
      getSelection().selectAllChildren(code);
      told.textContent = "selected; copy it with Ctrl+C";
    }
  });
  return make("div", {class: "command"}, make("pre", {tabindex: 0, "aria-label": label}, code), button, told);
}
// What is open, and what has the focus, stays so when everything is drawn anew.
function replaceKeeping(root, ...children) {
  const focused = root.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
  const open = [...root.querySelectorAll("details[open][data-key]")].map(each => each.dataset.key);
  root.replaceChildren(...children.filter(child => child !== null));
  for (const each of root.querySelectorAll("[data-key]")) {
    if (open.includes(each.dataset.key)) each.open = true;
    if (each.dataset.key === focused) each.focus({preventScroll: true});
  }
}
function redrawn(draw) {
  const spot = make("div", {}, draw());
  let width = innerWidth;
  addEventListener("resize", () => {
    if (width !== innerWidth) replaceKeeping(spot, ...[draw()].flat());
    width = innerWidth;
  });
  return spot;
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
  if (time >= 7200) return (time / 3600).toPrecision(3) + " h";
  if (time >= 120) return (time / 60).toPrecision(3) + " min";
  if (time >= 0.9995) return time.toPrecision(3) + " s"; // what rounds to 1000 ms is a second
  return time >= 0.9995e-3 ? (time * 1e3).toPrecision(3) + " ms" : (time * 1e6).toPrecision(3) + " µs";
}
function flops(count) {
  const units = [" ", " K", " M", " G", " T", " P", " E"];
  let unit = 0;
  while (count >= 999.5 && unit < 6) { count /= 1000; unit += 1; }
  return count.toPrecision(3) + units[unit] + "FLOP";
}
const count = number => number.toLocaleString("en");
const many = (number, word, ending = "s") => `${count(number)} ${word}${number === 1 ? "" : ending}`;
const percent = part => (100 * part).toFixed(1) + " %";
// Two numbers, or one where they read the same; green and red only where less is better.
function change(before, after, show, isLessBetter = false) {
  if (before === undefined || after === undefined) return before === after ? "" : after === undefined ? show(before) + " → none" : show(after);
  if (show(before) === show(after)) return show(after);
  return make("span", {class: `change ${isLessBetter ? after < before ? "less" : "more" : ""}`},
    make("span", {}, show(before) + " →"), " ", make("span", {}, show(after)));
}

// --- reading charts: with the pointer, or by arrow keys when a chart has the focus ---
const tip = make("div", {class: "tip", id: "tip", role: "status"});
tip.hidden = true;
document.body.append(tip);
const cursors = new Map();
function placeTip(x, y, text) {
  tip.textContent = text;
  tip.hidden = false;
  tip.style.left = Math.max(4, Math.min(x + 14, innerWidth - tip.offsetWidth - 8)) + "px";
  tip.style.top = Math.max(4, y - tip.offsetHeight - 10) + "px";
}
// `lanes` are rows with `top`, `bottom` and `marks` {x0, x1, tell}, all in the chart's own units. A mark with `y` is a
// point; one with `pick` can be chosen by a click or Enter.
function explore(svg, key, lanes) {
  lanes = lanes.filter(lane => lane.marks.length);
  if (!lanes.length) return svg;
  const cursor = make("rect", {class: "cursor", rx: 2});
  const distance = (mark, x, y) => Math.hypot(Math.max(mark.x0 - x, x - mark.x1, 0), mark.y === undefined || y === undefined ? 0 : mark.y - y);
  const nearest = (lane, x, y) => lane.marks.reduce((best, mark, index) => distance(mark, x, y) < distance(lane.marks[best], x, y) ? index : best, 0);
  const pick = () => { const [row, column] = cursors.get(key) || [0, 0]; lanes[row].marks[column].pick?.(); };
  const show = (row, column, pointer) => {
    const lane = lanes[row], mark = lane.marks[column], box = svg.getBoundingClientRect();
    const scale = box.width / svg.viewBox.baseVal.width;
    cursors.set(key, [row, column]);
    const [top, bottom] = mark.y === undefined ? [lane.top, lane.bottom] : [mark.y - 8, mark.y + 8], around = mark.y === undefined ? 1 : 8;
    const place = {x: mark.x0 - around, y: top, width: mark.x1 - mark.x0 + 2 * around, height: bottom - top};
    for (const [name, value] of Object.entries(place)) cursor.setAttribute(name, value);
    svg.append(cursor);
    if (pointer) placeTip(pointer.clientX, pointer.clientY, mark.tell());
    else placeTip(box.left + (mark.x0 + mark.x1) / 2 * scale, box.top + top * scale, mark.tell());
  };
  const hide = () => { cursor.remove(); tip.hidden = true; };
  svg.addEventListener("pointermove", event => {
    const box = svg.getBoundingClientRect(), scale = svg.viewBox.baseVal.width / box.width;
    const x = (event.clientX - box.left) * scale, y = (event.clientY - box.top) * scale;
    const away = lane => Math.max(lane.top - y, y - lane.bottom, 0);
    const row = lanes.reduce((best, lane, index) => away(lane) < away(lanes[best]) ? index : best, 0);
    show(row, nearest(lanes[row], x, y), event);
  });
  svg.addEventListener("click", pick);
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("blur", hide);
  svg.addEventListener("focus", () => {
    if (!svg.matches(":focus-visible")) return;
    const [row, column] = cursors.get(key) || [0, 0];
    const lane = Math.min(row, lanes.length - 1);
    show(lane, Math.min(column, lanes[lane].marks.length - 1));
  });
  svg.addEventListener("keydown", event => {
    const [row, column] = cursors.get(key) || [0, 0], marks = lanes[row].marks;
    const across = next => [next, nearest(lanes[next], marks[column].x0)];
    const page = Math.ceil(marks.length / 20);
    const moves = {
      ArrowLeft: () => [row, Math.max(0, column - 1)], ArrowRight: () => [row, Math.min(marks.length - 1, column + 1)],
      PageUp: () => [row, Math.max(0, column - page)], PageDown: () => [row, Math.min(marks.length - 1, column + page)],
      Home: () => [row, 0], End: () => [row, marks.length - 1],
      ArrowUp: () => across(Math.max(0, row - 1)), ArrowDown: () => across(Math.min(lanes.length - 1, row + 1)),
    };
    if (event.key === "Escape") return hide();
    if (event.key === "Enter") return pick();
    if (!moves[event.key]) return;
    event.preventDefault();
    show(...moves[event.key]());
  });
  for (const [name, value] of Object.entries({tabindex: 0, "data-key": key})) svg.setAttribute(name, value);
  return svg;
}

// --- charts ---
function chartWidth() {
  return Math.max(320, Math.min(1180, document.documentElement.clientWidth) - (innerWidth > 900 ? 80 : 60));
}
const drawing = (width, height, label) => make("svg", {viewBox: `0 0 ${width} ${height}`, role: "img",
  "aria-label": `${label}; arrow keys read its values`});
// Round values between two, with none whose text was there before; `unit` is what they are round in, as for bytes.
function ticks(low, high, show, {most = 5, unit = 1, isWhole = false} = {}) {
  const span = Math.max((high - low) / unit / most, isWhole ? 1 : Number.MIN_VALUE), power = 10 ** Math.floor(Math.log10(span));
  const step = [1, 2, 5, 10].map(factor => factor * power).find(size => size >= span * 0.999);
  const first = Math.ceil(low / unit / step - 1e-9), values = [];
  for (let number = first; number * step * unit <= high + step * unit * 1e-9; number += 1) values.push(number * step * unit);
  const texts = values.map(show);
  return values.filter((_, index) => texts.indexOf(texts[index]) === index);
}
const byteUnit = count => 1024 ** Math.min(4, Math.floor(Math.log(Math.max(1, count)) / Math.log(1024)));
const boxes = places => places.map(([x, y, width, height]) => `M${x.toFixed(1)},${y}h${width.toFixed(1)}v${height}h${(-width).toFixed(1)}z`).join("");
// Lines have `points` [x, y], a `style` or `kind`; marks are vertical lines {x, style, kind}, bands {from, to, name} shaded
// parts; texts below the chart, `ends`, are [x, anchor, text]. `range` is where x begins and ends; without it points decide.
function lineChart({key, label, lines, width, height = 230, low, high, showY, showX, unit = 1, tell, range, marks = [], bands = [], ends = []}) {
  const left = 70, bottom = 24, floor = height - bottom, all = lines.flatMap(line => line.points);
  const first = range ? range[0] : all.reduce((least, point) => Math.min(least, point[0]), Infinity);
  const last = all.reduce((most, point) => Math.max(most, point[0]), Math.max(range ? range[1] : first, first + 1e-9));
  const x = value => left + (value - first) / (last - first) * (width - left - 8);
  const y = value => floor - (value - low) / (high - low) * (floor - 10);
  const trace = points => points.map((point, i) => `${i ? "L" : "M"}${x(point[0]).toFixed(1)},${y(point[1]).toFixed(1)}`).join("");
  const svg = drawing(width, height, label);
  for (const value of ticks(low, high, showY, {unit})) {
    svg.append(make("line", {class: "grid", x1: left, x2: width - 8, y1: y(value), y2: y(value)}),
      make("text", {x: left - 8, y: y(value) + 4, "text-anchor": "end"}, showY(value)));
  }
  if (showX) svg.append(make("text", {x: left - 8, y: height - 7, "text-anchor": "end"}, "step"));
  if (showX) for (const value of ticks(first, last, showX, {most: width > 500 ? 6 : 3, isWhole: true})) {
    svg.append(make("text", {x: x(value), y: height - 7, "text-anchor": x(value) > width - 40 ? "end" : "middle"}, showX(value)));
  }
  for (const [row, band] of bands.entries()) {
    const start = x(Math.max(first, band.from)), end = Math.max(start + 3, x(Math.min(last, band.to)));
    svg.append(make("rect", {class: "band", x: start, width: end - start, y: 6, height: floor - 6}),
      make("text", {class: "band-name", x: end - start > 60 ? start + 4 : start - 4, y: 16 + 13 * (row % 4), "text-anchor": end - start > 60 ? "start" : "end"}, band.name));
  }
  for (const mark of marks.filter(each => each.x >= first && each.x <= last)) {
    svg.append(make("line", {class: `mark ${mark.kind || ""}`, style: mark.style || "", x1: x(mark.x), x2: x(mark.x), y1: mark.kind === "tick" ? floor - 7 : 6, y2: floor}));
  }
  for (const line of lines.filter(each => each.points.length)) {
    const only = line.points[0];
    if (line.isFilled) svg.append(make("path", {class: "area", d: `${trace(line.points)}L${x(line.points.at(-1)[0])},${floor}L${x(only[0])},${floor}Z`}));
    if (line.points.length === 1) svg.append(make("circle", {cx: x(only[0]), cy: y(only[1]), r: 3, style: (line.style || "").replace("stroke", "fill")}));
    else svg.append(make("path", {class: `curve ${line.kind || ""}`, style: line.style || "", d: trace(line.points)}));
  }
  for (const [value, anchor, text] of ends) svg.append(make("text", {x: x(value), dx: anchor === "start" ? 6 : -6, y: height - 7, "text-anchor": anchor}, text));
  const stops = lines.reduce((most, line) => line.points.length > most.length ? line.points : most, []);
  return explore(svg, key, [{top: 6, bottom: floor, marks: stops.map(([at]) => ({x0: x(at), x1: x(at), tell: () => tell(at)}))}]);
}
const nearestPoint = (points, at) => points.reduce((a, b) => Math.abs(b[0] - at) < Math.abs(a[0] - at) ? b : a);
// Lanes have a `name` and `spans` {start, end, kind, label, tell}; `under` draws below the spans of a lane.
function laneChart({key, label, lanes, total, width, left = 100, under = () => []}) {
  const row = 30, height = lanes.length * row + 26;
  const x = time => left + time / Math.max(total, 1e-12) * (width - left - 10);
  const svg = drawing(width, height, label);
  const ticks = width > 600 ? 5 : 2;
  for (let i = 0; i <= ticks; i += 1) {
    const time = total * i / ticks;
    svg.append(make("line", {class: "grid", x1: x(time), x2: x(time), y1: 0, y2: height - 22}),
      make("text", {x: x(time), y: height - 7, "text-anchor": i === ticks ? "end" : "middle"}, seconds(time)));
  }
  const rows = lanes.map((lane, number) => {
    const top = number * row + 4, kinds = new Map();
    svg.append(make("text", {x: left - 10, y: top + 15, "text-anchor": "end"}, lane.name), ...under(lane, x, top, row - 8));
    const marks = lane.spans.map(span => ({x0: x(span.start), x1: x(span.end), tell: span.tell}));
    lane.spans.forEach((span, index) => {
      const size = Math.max(0.4, marks[index].x1 - marks[index].x0 - 0.3);
      if (!kinds.has(span.kind)) kinds.set(span.kind, []);
      kinds.get(span.kind).push([marks[index].x0, top, size, row - 8]);
    });
    svg.append(...[...kinds].map(([kind, places]) => make("path", {class: kind, d: boxes(places)})));
    svg.append(...lane.spans.flatMap((span, index) => span.label && marks[index].x1 - marks[index].x0 > 6 * span.label.length + 5
      ? [make("text", {class: "label", x: marks[index].x0 + 3, y: top + 15}, span.label)] : []));
    return {top, bottom: top + row - 8, marks};
  });
  return explore(svg, key, rows);
}
