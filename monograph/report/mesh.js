// A simulated mesh: a column for each axis, a row for each collective, dots where a group has members along an axis.
function meshPicture(mesh) {
  const width = chartWidth(), left = 250, right = 70, top = 74, line = 26, fault = mesh.fault ? 1 : 0;
  const height = top + line * (mesh.rows.length + fault) + 10, step = (width - left - right) / mesh.axes.length;
  const x = name => left + step * (mesh.axes.findIndex(axis => axis.name === name) + 0.5);
  const svg = drawing(width, height, `collectives of a step on ${mesh.ranks} ranks by the axes of the mesh`);
  mesh.axes.forEach(axis => {
    const shown = Math.min(axis.degree, 8), size = Math.max(4, Math.min(9, step / 10));
    svg.append(make("text", {x: x(axis.name), y: 16, "text-anchor": "middle"}, `${axis.name} ${count(axis.degree)}`));
    for (let number = 0; number < shown; number++) svg.append(make("rect", {x: x(axis.name) + (number - shown / 2) * (size + 2), y: 26, width: size, height: size, rx: 1.5, fill: "var(--before)"}));
    if (axis.degree > shown) svg.append(make("text", {x: x(axis.name) + shown / 2 * (size + 2) + 4, y: 26 + size, class: "quiet"}, "…"));
    svg.append(make("line", {class: "grid", x1: x(axis.name), x2: x(axis.name), y1: 46, y2: height - 10}));
  });
  svg.append(make("text", {x: 0, y: 62, class: "quiet"}, "collective"), make("text", {x: width, y: 62, "text-anchor": "end", class: "quiet"}, "ops"));
  const draw = (row, y, color) => {
    const places = row.axes.map(x);
    if (places.length > 1) svg.append(make("line", {x1: Math.min(...places), x2: Math.max(...places), y1: y, y2: y, stroke: color, "stroke-width": 3}));
    for (const place of places) svg.append(make("circle", {cx: place, cy: y, r: 6, fill: color}));
  };
  mesh.rows.forEach((row, index) => {
    const y = top + line * (index + 0.5);
    svg.append(make("text", {x: 0, y: y + 4}, `${row.op} over ${row.group}`), make("text", {x: width, y: y + 4, "text-anchor": "end"}, count(row.count)));
    draw(row, y, mesh.is_equal ? "var(--run-3)" : "var(--before)");
  });
  if (fault) {
    const y = top + line * (mesh.rows.length + 0.5);
    svg.append(make("text", {x: 0, y: y + 4, style: "fill:var(--exposed);font-weight:600"}, "here is the fault"));
    draw({axes: mesh.fault_axes}, y, "var(--exposed)");
  }
  return card(svg);
}
function meshSection(mesh) {
  const said = mesh.is_equal ? `Equal to one device in fp64: ${count(mesh.compared)} outputs of ${mesh.graphs.length} graphs and of the update, on all ${count(mesh.ranks)} ranks of a small copy.`
    : `Different from one device: ${mesh.fault}`;
  const colors = mesh.is_equal ? [["var(--run-3)", "checked: members of the group along this axis"]] : [["var(--before)", "collectives of the step"], ["var(--exposed)", "axes of the first wrong node"]];
  return section("mesh", "The mesh, simulated", said, legend(colors), redrawn(() => meshPicture(mesh)));
}
