// --- the graph as text: folded by block, before and after every pass, with a search ---
const MOST_FOUND = 400;
function graphView(graphs, word) {
  let chosen = graphs.versions.length - 1, shownFor = null;
  const bodies = graphs.bodies.map(body => ({lines: body.text.split("\n"), sources: body.sources.split(" "), modules: body.modules}));
  const select = make("select", {id: "version"}, graphs.versions.map((version, index) => make("option", {value: index}, version.name)));
  const search = make("input", {type: "search", id: "search", placeholder: "module, op, shape, parameter", autocomplete: "off", spellcheck: "false"});
  const found = make("p", {class: "quiet", role: "status"}), spot = make("div");
  const line = (body, index) => make("div", {class: "rest"}, bodies[body].lines[index], sourceLink(graphs.sources[bodies[body].sources[index]]));
  const box = (group, indices) => {
    const all = bodies[group.body].lines.map((_, index) => index), shown = indices || all;
    const note = `${indices ? `${count(indices.length)} of ` : ""}${many(all.length, "node")}${group.count > 1 ? " each" : ""}`;
    const found = lazyBox({}, `${group.name}${nameModules(bodies[group.body].modules)}`, note, () => shown.map(index => line(group.body, index)));
    found.open = indices !== null;
    return found;
  };
  const draw = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(word => word);
    const groups = foldParts(graphs.versions[chosen].parts);
    if (`${chosen} ${words}` === shownFor) return;
    shownFor = `${chosen} ${words}`;
    if (!words.length) {
      found.textContent = `${many(groups.length, "part")}; blocks with the same nodes are one part.`;
      return spot.replaceChildren(...groups.map(group => box(group, null)));
    }
    const hits = groups.map(group => [group, bodies[group.body].lines.flatMap((text, index) =>
      words.every(word => text.toLowerCase().includes(word)) ? [index] : [])]).filter(([, indices]) => indices.length);
    const total = hits.reduce((sum, [group, indices]) => sum + indices.length * group.count, 0);
    let left = MOST_FOUND;
    const shown = hits.flatMap(([group, indices]) => {
      const part = indices.slice(0, left);
      left -= part.length;
      return part.length ? [box(group, part)] : [];
    });
    found.textContent = `${many(total, "node")} with ${words.map(word => `“${word}”`).join(" and ")}` + (left ? "." : `; the first ${MOST_FOUND} lines are shown.`);
    spot.replaceChildren(...shown);
  };
  select.value = chosen;
  select.addEventListener("change", () => { chosen = Number(select.value); draw(); });
  search.addEventListener("input", draw);
  addEventListener("keydown", event => {
    if (event.key !== "/" || ["INPUT", "SELECT"].includes(document.activeElement.tagName)) return;
    event.preventDefault();
    search.focus();
  });
  draw();
  return [make("p", {class: "controls"}, make("label", {for: "version"}, word), select, make("label", {for: "search"}, " search (key /) "), search), found, spot];
}
// `: attention, feed_forward and 2 more`, those with most nodes first.
function nameModules(modules) {
  const shown = modules.length > 4 ? [...modules.slice(0, 3), `${modules.length - 3} more`] : modules;
  return `: ${shown.join(", ") || "outside of the modules"}`;
}
// Blocks with the same lines as one, where the first of them stands: `forward blocks 4..60`.
function foldParts(parts) {
  const groups = new Map();
  for (const part of parts) {
    const [half, block] = part.name.split(" block "), key = block ? `${half} ${part.body}` : `${part.name} ${groups.size}`;
    if (!groups.has(key)) groups.set(key, {half, name: part.name, body: part.body, blocks: []});
    if (block) groups.get(key).blocks.push(Number(block));
  }
  return [...groups.values()].map(group => ({...group, count: group.blocks.length || 1,
    name: group.blocks.length > 1 ? `${group.half} blocks ${listRuns(group.blocks)}` : group.name}));
}
function listRuns(numbers) {
  const runs = [];
  for (const number of [...numbers].sort((a, b) => a - b)) {
    if (runs.length && number === runs.at(-1)[1] + 1) runs.at(-1)[1] = number;
    else runs.push([number, number]);
  }
  return runs.map(([first, last]) => first === last ? first : `${first}..${last}`).join(", ");
}
function sourceLink(source) {
  return source ? make("a", {class: "source", href: `#${encodeURIComponent(source)}`}, source.split("/").at(-1)) : null;
}
// The lines of code that nodes come from; links lead here.
function codeView(code) {
  return Object.entries(code).map(([path, lines]) => lazyBox({id: path}, path, `${count(lines.length)} lines`, () =>
    lines.flatMap(([number, text], index) => [
      index && number > lines[index - 1][0] + 1 ? make("div", {class: "rest"}, "⋯") : null,
      make("div", {id: `${path}:${number}`}, make("i", {}, String(number)), text || " ")])));
}
