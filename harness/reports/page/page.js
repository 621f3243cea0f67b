"use strict";
// Tables: read from the CSV that the page holds, shown with sorting and a filter, saved as that CSV.
// Without JavaScript the answer, the figures and the tables for people are there all the same.

const MOST_ROWS = 1000; // shown at once; the filter and the file reach the rest

let sources; // tables by name: read by start()
const known = new Map();

/** Return what the page holds, which is JSON, compressed by gzip. */
async function unpacked() {
  const bytes = Uint8Array.from(atob(document.getElementById("content").textContent), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

/** Make an element with text, which is never markup. */
function make(tag, settings = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(settings)) {
    if (name in made) made[name] = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

/** Return the records of a CSV text: cells with commas, quotes or line ends stand in quotes. */
function parsed(text) {
  const records = [];
  let record = [];
  for (const [, quoted, plain, end] of text.matchAll(/(?:"((?:[^"]|"")*)"|([^",\n]*))(,|\n)/g)) {
    record.push(quoted === undefined ? plain : quoted.replaceAll('""', '"'));
    if (end === "\n") {
      records.push(record);
      record = [];
    }
  }
  return records;
}

/** Return a table of the page: its columns, its rows as objects, and which columns are numbers. */
function table(name) {
  if (!known.has(name)) {
    const source = sources[name];
    const [columns, ...records] = parsed(source.csv);
    const numbers = new Set(source.numbers);
    const value = (column, text) => (numbers.has(column) ? (text === "" ? null : Number(text)) : text);
    const rows = records.map((record) =>
      Object.fromEntries(columns.map((column, place) => [column, value(column, record[place])])));
    known.set(name, { columns, rows, numbers });
  }
  return known.get(name);
}

/** Return what a cell shows: five digits of a number, or the text. */
function shown(value) {
  if (value === null || value === undefined) return "";
  if (typeof value !== "number" || Number.isInteger(value)) return String(value);
  return String(Number(value.toPrecision(5)));
}

/** Return what stands in a cell: an interval is not broken. */
function unbroken(text) {
  return text.replace(/ (?=[^[\]]*\])/g, "\u00a0");
}

/** Return what a cell is sorted by: a text such as "13.5 [9.7, 21.0]" by its number. */
function key(value) {
  if (value === null || value === "") return null;
  const number = parseFloat(value);
  return Number.isNaN(number) ? value : number;
}

/** Compare two cells; what is missing comes last, either way. */
function compare(one, other, sign) {
  const [first, second] = [key(one), key(other)];
  if (first === null || second === null) return (first === null) - (second === null);
  if (typeof first === "number" && typeof second === "number") return sign * (first - second);
  return sign * String(one).localeCompare(String(other));
}

/** Put a table into an element: a filter, a button for its CSV, columns that sort. */
function showTable(place, name, kept = () => true, file = name) {
  const { columns, rows, numbers } = table(name);
  const mine = rows.filter(kept);
  const body = make("tbody");
  const count = make("span", { className: "note", role: "status" });
  const filter = make("input", { type: "search", placeholder: "filter rows", ariaLabel: `Filter ${file}` });
  const heads = columns.map((column) =>
    make("th", { scope: "col" }, make("button", { type: "button", textContent: column.replaceAll("_", " ") })));
  let order = mine;
  const fill = () => {
    const words = filter.value.toLowerCase().split(/\s+/);
    const found = order.filter((row) => {
      const text = Object.values(row).map(shown).join("\n").toLowerCase();
      return words.every((word) => text.includes(word));
    });
    body.replaceChildren(...found.slice(0, MOST_ROWS).map((row) => make("tr", {}, ...columns.map((column) =>
      make("td", { className: numbers.has(column) ? "number" : "", textContent: unbroken(shown(row[column])) })))));
    const cut = found.length > MOST_ROWS ? `the first ${MOST_ROWS} of ` : "";
    count.textContent = `${cut}${found.length} of ${mine.length} rows`;
  };
  heads.forEach((head, place) => head.firstChild.addEventListener("click", () => {
    const sign = head.ariaSort === "ascending" ? -1 : 1;
    heads.forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", sign === 1 ? "ascending" : "descending");
    order = [...mine].sort((one, other) => compare(one[columns[place]], other[columns[place]], sign));
    fill();
  }));
  filter.addEventListener("input", fill);
  const save = make("button", { type: "button", className: "tool", textContent: `${name}.csv` });
  save.addEventListener("click", () => download(`${name}.csv`, sources[name].csv));
  fill();
  place.append(
    make("div", { className: "tools" }, filter, save, count),
    make("div", { className: "shown", tabIndex: 0, role: "region", ariaLabel: `Table ${file}` },
      make("table", { className: "rows" }, make("thead", {}, make("tr", {}, ...heads)), body)));
}

/** Hand a text to the reader as a file. */
function download(name, text) {
  const link = make("a", { href: URL.createObjectURL(new Blob([text], { type: "text/csv" })), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** Let a button copy the text beside it. */
function copying(button) {
  button.addEventListener("click", async () => {
    const text = document.getElementById(button.dataset.copy).textContent;
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
    setTimeout(() => (button.textContent = "Copy"), 2000);
  });
  button.hidden = false;
}

/** Fill the tables, each when its disclosure is first opened. */
async function start() {
  document.querySelectorAll("[data-copy]").forEach(copying);
  const content = await unpacked();
  sources = content.tables;
  for (const image of document.querySelectorAll("[data-figure]")) {
    image.src = `data:image/svg+xml,${encodeURIComponent(content.figures[image.dataset.figure])}`;
  }
  for (const place of document.querySelectorAll("[data-table]")) {
    place.addEventListener("toggle", () => showTable(place, place.dataset.table), { once: true });
  }
  document.body.dataset.ready = true;
}

// Paper has the tables for people; what was closed before is closed again.
let opened = [];
addEventListener("beforeprint", () => {
  opened = [...document.querySelectorAll("details[data-print]:not([open])")];
  for (const place of opened) place.open = true;
});
addEventListener("afterprint", () => opened.forEach((place) => (place.open = false)));

start();
