// --- where the time of a step goes: what bounds it, the costliest ops, and both under the roofs of the machine ---
const BOUNDS = {compute: "--forward", memory: "--weight_grad", latency: "--before", waiting: "--exposed"};
const BOUND_NAMES = {compute: "bound by compute", memory: "bound by memory", latency: "kernel latency", waiting: "waiting for collectives"};
function timeBounds({bounds}) {
  const parts = Object.entries(bounds).filter(([, time]) => time > 0), total = parts.reduce((sum, [, time]) => sum + time, 0);
  return make("div", {},
    make("div", {class: "shares", "aria-hidden": true}, parts.map(([name, time]) => make("i", {style: `flex:${time / total};background:var(${BOUNDS[name]})`}))),
    legend(parts.map(([name, time]) => [`var(${BOUNDS[name]})`, `${BOUND_NAMES[name]}: ${seconds(time)} (${percent(time / total)})`])));
}
function opTable({rows, others}) {
  const blocks = row => `${count(row.count)}${row.block ? `, ${/[.,]/.test(row.block) ? "blocks" : "block"} ${row.block}` : ""}`;
  return card(table([
    {title: "module", kind: "wide", show: row => modulePath(row.path)},
    {title: "op", kind: "wide", show: row => make("div", {}, row.op, make("div", {class: "quiet"}, row.direction))},
    {title: "time", kind: "number", show: row => seconds(row.seconds)}, {title: "of step", kind: "number", show: row => percent(row.share)},
    {title: "bound by", kind: "whole", show: row => row.bound}, {title: "of peak", kind: "number", show: row => row.flops ? percent(row.peak_share) : ""},
    {title: "ops", show: blocks}, {title: "result", show: row => shape(row)}, {title: "source", show: row => sourceLink(row.source)}], rows),
  others.rows ? quiet(`${many(others.rows, "further row")}: ${seconds(others.seconds)} in all.`) : null);
}
// Both axes are logarithmic: FLOP for each byte of memory touched, and FLOP/s. Circles are as large as their part of the step.
function roofline(ops, key) {
  const rows = ops.rows.filter(row => row.flops && row.bytes), roofs = Object.entries(ops.flops_per_second);
  if (!rows.length) return quiet("None of the costliest ops multiplies matrices.");
  const intensity = row => row.flops / row.bytes, speed = row => row.flops / row.seconds, bandwidth = ops.bytes_per_second;
  const ridges = roofs.map(([, peak]) => peak / bandwidth), peak = Math.max(...roofs.map(roof => roof[1]));
  const decade = (values, round) => round(Math.log10(values));
  const left = decade(Math.min(...rows.map(intensity), ...ridges) / 1.5, Math.floor), right = decade(Math.max(...rows.map(intensity), ...ridges) * 1.5, Math.ceil);
  const low = decade(Math.min(...rows.map(speed)) / 1.5, Math.floor), high = decade(peak * 1.2, Math.ceil);
  const width = chartWidth(), height = 320, x0 = 84, floor = height - 38;
  const x = value => x0 + (Math.log10(value) - left) / (right - left) * (width - x0 - 14);
  const y = value => floor - (Math.log10(value) - low) / (high - low) * (floor - 10);
  const svg = drawing(width, height, "costliest ops under the roofs of the machine");
  for (let power = low; power <= high; power += 1) svg.append(make("line", {class: "grid", x1: x0, x2: width - 14, y1: y(10 ** power), y2: y(10 ** power)}),
    make("text", {x: x0 - 8, y: y(10 ** power) + 4, "text-anchor": "end"}, flops(10 ** power).replace(/\.0+ /, " ") + "/s"));
  for (let power = left; power <= right; power += 1) svg.append(make("line", {class: "grid", x1: x(10 ** power), x2: x(10 ** power), y1: 10, y2: floor}),
    make("text", {x: x(10 ** power), y: floor + 16, "text-anchor": power === right ? "end" : "middle"}, power < 0 ? String(10 ** power) : count(10 ** power)));
  svg.append(make("text", {x: (x0 + width) / 2, y: height - 4, "text-anchor": "middle"}, "FLOP for each byte of memory"));
  for (const [dtype, top] of roofs) {
    const ridge = Math.max(top / bandwidth, 10 ** left), foot = Math.max(10 ** left, 10 ** low / bandwidth);
    svg.append(make("path", {class: "roof", d: `M${x(foot)},${y(bandwidth * foot)}L${x(ridge)},${y(top)}L${x(10 ** right)},${y(top)}`}),
      make("text", {x: x(10 ** right), y: y(top) - 4, "text-anchor": "end"}, `${dtype}: ${flops(top)}/s`));
  }
  const marks = rows.map(row => ({x0: x(intensity(row)), x1: x(intensity(row)), y: y(speed(row)), row,
    tell: () => `${row.path} ${row.op} (${row.direction}): ${seconds(row.seconds)}, ${percent(row.share)} of the step\n`
      + `${intensity(row).toPrecision(3)} FLOP a byte, ${flops(speed(row))}/s, ${percent(row.peak_share)} of the peak of ${row.compute_dtype}`}));
  marks.sort((a, b) => a.x0 - b.x0);
  for (const mark of [...marks].sort((a, b) => b.row.share - a.row.share)) svg.append(make("circle", {class: `dot ${mark.row.direction.split(",")[0]}`,
    cx: mark.x0, cy: mark.y, r: 3 + 40 * Math.sqrt(mark.row.share)}));
  return make("div", {}, legend([["var(--forward)", "forward"], ["var(--backward)", "backward"]]), card(explore(svg, key, [{top: 10, bottom: floor, marks}])));
}
function speed() {
  const parts = against ? [["A", before], ["B", after]] : [["", after]];
  return parts.flatMap(([name, graph]) => [name ? make("h3", {}, name) : null, timeBounds(graph.ops),
    make("h3", {}, "Roofline"), redrawn(() => roofline(graph.ops, `roofline ${name}`)), make("h3", {}, "Costliest ops"), opTable(graph.ops)]);
}
