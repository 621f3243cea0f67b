"use strict";
// Charts: Vega-Lite draws what content.charts describes; the switches choose the methods in all of them.

const SVG = "http://www.w3.org/2000/svg";
const methods = new Map(); // by their name in tables
const names = new Map(); // by their name in charts
const on = new Set();
const views = [];
const options = {
  mode: "vega-lite", renderer: "svg", ast: true, // no eval: the page's policy forbids it
  actions: { export: true, source: false, compiled: false, editor: false },
  config: { view: { stroke: null }, axis: { labelFontSize: 12, titleFontSize: 12, titleFontWeight: "normal" } },
};

/** Return the rows of one chart, each under its method's name in charts. */
function rowsOf({ source, model, task }) {
  return table(source).rows
    .filter((row) => row.model === model && row.task === task && methods.has(row.scaling))
    .map((row) => ({ ...row, name: methods.get(row.scaling).name }));
}

/** Make the place of a chart, with the table of its numbers behind it. */
function place(charts, chart) {
  const title = `${chart.task}, ${chart.model}`;
  const plot = make("div", { className: "plot", role: "group" });
  plot.setAttribute("aria-label", `${chart.about}: ${title}. The table below has its numbers.`);
  const numbers = make("details", {}, make("summary", { textContent: "The numbers of this chart" }));
  const fill = whenOpened(numbers, () => showTable(numbers, chart.source,
    (row) => row.model === chart.model && row.task === chart.task, `${chart.about}: ${title}`));
  if (!chart.lengths) { // paper has no pointer; a loss at every position would take twenty pages of it
    let open = false;
    addEventListener("beforeprint", () => { fill(); open = numbers.open; numbers.open = true; });
    addEventListener("afterprint", () => { numbers.open = open; });
  }
  charts.append(make("figure", {}, make("figcaption", { textContent: title }), plot, numbers));
  return plot;
}

/** Draw a chart in its place. */
async function draw(plot, chart) {
  const spec = { ...chart.spec, datasets: { rows: rowsOf(chart) } };
  const { view } = await vegaEmbed(plot, spec, options);
  plot.querySelector("summary")?.setAttribute("aria-label", "Save this chart");
  if (chart.lengths) plot.before(slider(chart, view));
  view.addEventListener("mouseover", (_, item) => point(item?.datum?.name ?? ""));
  view.addEventListener("mouseout", () => point(""));
  views.push(view);
}

/** Return a slider that chooses the length of a chart. */
function slider(chart, view) {
  const last = chart.lengths.length - 1;
  const input = make("input", { type: "range", min: 0, max: last, step: 1, value: last });
  const told = make("output");
  const choose = () => {
    const length = chart.lengths[input.value];
    told.textContent = `${length.toLocaleString("en")} tokens (${Number((length / chart.trained).toPrecision(3))}×)`;
    input.setAttribute("aria-valuetext", told.textContent);
    view.signal("length", length).runAsync();
  };
  input.addEventListener("input", choose);
  choose();
  return make("label", { className: "slider" }, "Length ", input, told);
}

/** Let one method stand out in every chart; "" for none. */
function point(name) {
  for (const view of views) if (view.signal("over") !== name) view.signal("over", name).runAsync();
}

/** Show in every chart and map the methods that are switched on. */
function show() {
  for (const view of views) view.signal("shown", [...on]).runAsync();
  for (const map of document.querySelectorAll(".grid")) map.parentNode.hidden = !on.has(map.caption.textContent);
}

/** Return a method's line and mark, as the charts draw them. */
function sample({ color, face, dash, shape }) {
  const drawing = document.createElementNS(SVG, "svg");
  drawing.setAttribute("width", 34);
  drawing.setAttribute("height", 12);
  drawing.setAttribute("aria-hidden", "true");
  const add = (tag, settings) => {
    const made = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(settings)) made.setAttribute(name, value);
    drawing.append(made);
  };
  add("path", { d: "M0,6H34", stroke: color, "stroke-width": 2, "stroke-dasharray": dash });
  add("path", {
    d: shape, transform: "translate(17,6) scale(4.5)", fill: face, stroke: color, "vector-effect": "non-scaling-stroke",
  });
  return drawing;
}

/** Make a switch for every method. */
function switches() {
  const place = document.getElementById("switches");
  const boxes = [...names.values()].map((method) => {
    const box = make("input", { type: "checkbox", checked: true, value: method.name });
    box.addEventListener("change", () => {
      if (box.checked) on.add(method.name);
      else on.delete(method.name);
      show();
    });
    const label = make("label", {}, box, sample(method), method.name);
    for (const event of ["pointerenter", "focusin"]) label.addEventListener(event, () => point(method.name));
    for (const event of ["pointerleave", "focusout"]) label.addEventListener(event, () => point(""));
    place.append(label);
    return box;
  });
  const choose = (text, kept) => {
    const button = make("button", { type: "button", className: "tool", textContent: text });
    button.addEventListener("click", () => {
      on.clear();
      for (const box of boxes) {
        box.checked = kept(names.get(box.value));
        if (box.checked) on.add(box.value);
      }
      show();
    });
    document.getElementById("all").append(button, " ");
  };
  choose("all", () => true);
  choose("clear", () => false);
  if (content.methods.some((method) => !method.own)) choose("the best, in colour", (method) => method.own);
}

/** Draw the maps of keys as tables: depth down, length across, percent in each cell. */
function maps() {
  const place = document.getElementById("grids");
  const groups = new Map();
  for (const row of table("depths").rows.filter((row) => methods.has(row.scaling))) {
    const group = `${row.task}, ${row.model}`;
    const name = methods.get(row.scaling).name;
    if (!groups.has(group)) groups.set(group, new Map());
    if (!groups.get(group).has(name)) groups.get(group).set(name, []);
    groups.get(group).get(name).push(row);
  }
  for (const [group, byName] of groups) {
    const every = [...byName.values()].flat();
    const of = (field) => [...new Set(every.map((row) => row[field]))].sort((one, other) => one - other);
    place.append(make("h3", { textContent: group }));
    for (const [name, rows] of byName) {
      const map = grid(name, rows, of("length"), of("depth"));
      place.append(make("div", { className: "scroll", tabIndex: 0, role: "region", ariaLabel: `${group}, ${name}` }, map));
    }
  }
}

/** Return the map of one method. */
function grid(name, rows, lengths, depths) {
  const trained = rows[0].trained_length;
  const edge = lengths.find((length) => length > trained);
  const side = (length) => (length === edge ? "beyond" : "");
  const found = new Map(rows.map((row) => [`${row.depth}/${row.length}`, row]));
  const cell = (depth, length) => {
    const row = found.get(`${depth}/${length}`);
    const made = make("td", { className: side(length), textContent: row ? Math.round(100 * row.found) : "–" });
    if (row) {
      const color = vega.scheme("viridis")(row.found);
      made.title = `${row.n} trials`;
      made.style.backgroundColor = color;
      made.style.color = row.found > 0.6 ? "#000" : "#fff";
    }
    return made;
  };
  const head = lengths.map((length) => make("th", { scope: "col", className: side(length), textContent: length }));
  const body = depths.map((depth) => make("tr", {},
    make("th", { scope: "row", textContent: `${Math.round(100 * depth)} %` }),
    ...lengths.map((length) => cell(depth, length))));
  return make("table", { className: "grid" }, make("caption", { textContent: name }),
    make("thead", {}, make("tr", {}, make("th", { scope: "col", textContent: "depth" }), ...head)),
    make("tbody", {}, ...body));
}

/** Draw everything, one chart after the other, so that the page can be read meanwhile. */
async function start() {
  content = await unpacked();
  for (const method of content.methods) {
    methods.set(method.scaling, method);
    names.set(method.name, method);
    on.add(method.name);
  }
  tables();
  switches();
  if (content.sources.depths) maps();
  // A chart is as wide as its place, so all places are made before any is drawn.
  const charts = [...document.querySelectorAll("[data-charts]")].flatMap((section) =>
    content.charts[section.dataset.charts].map((chart) => [place(section, chart), chart]));
  for (const [plot, chart] of charts) await draw(plot, chart);
  document.body.dataset.drawn = views.length;
}

start();
