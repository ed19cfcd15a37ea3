// The script of a page is one module, joined from files of this folder in the order of viewer.py or page_file.py.
// These functions and `textContent` put text into the page as text. No file puts it there as HTML.

const SVG = "http://www.w3.org/2000/svg";

/** Return the element of the page with this id. */
const byId = (id) => document.getElementById(id);

/** Make an HTML element; an attribute that is null or false is left out, and so is a child that is null or an empty text. */
function element(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** Make an SVG element; attributes and children as for `element`. */
function shape(tag, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG, tag), attributes, children);
}

function filled(made, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== false) made.setAttribute(name, value);
  }
  made.append(...children.filter((child) => child !== null && child !== ""));
  return made;
}

/** Return a length of time, given in seconds, as people write it. */
function duration(seconds) {
  if (seconds < 0.0009995) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 0.1) return `${(seconds * 1000).toFixed(1)} ms`;
  if (seconds < 1) return `${Math.round(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 2 : 1)} s`;
  const whole = Math.round(seconds);
  return `${Math.floor(whole / 60)} min ${whole % 60} s`;
}

/** Return a time, in seconds since 1970, as `2026-11-30T08:00:00.000Z`; empty: a damaged trace has one without a date. */
function isoTime(seconds) {
  const date = new Date(seconds * 1000);
  return Number.isNaN(date.getTime()) ? "" : date.toISOString();
}

/** Return `3 turns`, or `1 turn`. */
const many = (count, noun) => `${count.toLocaleString("en")} ${noun}${count === 1 ? "" : "s"}`;

/** Return a path, quoted for a shell if necessary. */
const quoted = (path) => (/^[\w./:@-]+$/.test(path) ? path : `'${path.replace(/'/g, "'\\''")}'`);

/** Return the item with this index; if there is none, the first or the last item. */
const itemAt = (items, index) => items[Math.max(0, Math.min(items.length - 1, index))];

/** Return a badge with the word that marks a message or a turn, coloured by its grade. */
const badge = (word, grade) => element("span", { class: `badge ${grade}` }, word);

/** Change from dark to light, or back. Until this is called, the page has the theme of the system. */
function toggleTheme() {
  const { dataset } = document.documentElement;
  const theme = dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  dataset.theme = theme === "dark" ? "light" : "dark";
}

/** Change the address without a new entry in the history. A page within a notebook has no address to change. */
function setAddress(address) {
  if (location.protocol !== "about:") history.replaceState(null, "", address);
}
