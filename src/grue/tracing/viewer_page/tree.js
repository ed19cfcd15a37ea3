// Values for reading: prose as prose, JSON as a tree that opens and closes, images as images.

const LONG_PROSE = 2400;
const LONG_VALUE = 60;
const MOST_ENTRIES = 200;
const DEEPEST = 60;
const IMAGE = /^grue-image:([0-9a-f]{32})$/;
const BASE64 = /^[A-Za-z0-9+/]{200,}={0,2}$/;

/** The page's images by id; parsed when the first one is shown. */
const images = {
  table: null,
  served: false, // by the page's own server, one by one
  find(id) {
    if (this.served) return `image/${id}`;
    this.table ??= new Map(JSON.parse(byId("trace-images")?.textContent ?? "[]").map(([name, mime, data]) => [name, `data:${mime};base64,${data}`]));
    return this.table.get(id);
  },
};

/** Parse JSON. An integer too large for a JavaScript number becomes a BigInt, if the browser gives the text of it. */
function parsed(text) {
  if (!/\d{16}/.test(text)) return JSON.parse(text);
  return JSON.parse(text, (_, value, context) => (typeof value === "number" && !Number.isSafeInteger(value) && /^-?\d+$/.test(context?.source ?? "") ? BigInt(context.source) : value));
}

/** Write as JSON a value that `parsed` returned; a BigInt is written as a string. */
const written = (value, indent) => JSON.stringify(value, (_, one) => (typeof one === "bigint" ? String(one) : one), indent);

/** Return the content of a message as a value; null if the message was cut or cannot be parsed. */
function bodyOf(message) {
  if (!message || message.body.length < message.chars) return null;
  try {
    return parsed(message.body);
  } catch {
    return null; // nested more deeply than the browser reads
  }
}

/** Draw an image, or a note if the page does not have the image. */
function drawImage(id, name = "An image in the trace") {
  if (!images.served && document.readyState === "loading") {
    const place = element("span"); // the images are at the end of the page, which the browser still reads
    document.addEventListener("DOMContentLoaded", () => place.replaceWith(drawImage(id, name)), { once: true });
    return place;
  }
  const source = images.find(id);
  if (!source) return element("p", { class: "note" }, "An image, which is not in this page.");
  return element("img", { class: "picture", src: source, alt: name, loading: "lazy" });
}

/** Draw a text as prose, in its lines. A very long text is cut until the reader presses its button. */
function drawProse(text, kind = "", lines = (shown) => [visible(shown)]) {
  const box = element("div", { class: `prose ${kind}` });
  const clean = text.replace(/\r\n/g, "\n");
  if (clean.length <= LONG_PROSE * 1.3) {
    box.append(...lines(clean));
    return box;
  }
  const more = element("button", { type: "button", class: "more" }, `Show all ${clean.length.toLocaleString("en")} characters`);
  more.addEventListener("click", () => box.replaceChildren(...lines(clean)));
  box.append(...lines(clean.slice(0, LONG_PROSE)), "… ", more);
  return box;
}

const MARKED_UP = /(^```[^\n]*\n[^]*?(?:\n```[^\S\n]*$|(?![^])))|(^#{1,6} [^\n]*$)|\*\*([^*\n]+)\*\*|`([^`\n]+)`/gm;

/** Draw a model's text: code, headings and bold text of Markdown as such, and the rest unchanged in its lines. */
function drawMarkdown(text, kind = "") {
  return drawProse(text, kind, (shown) => {
    const parts = [];
    let end = 0;
    for (const { index, 0: whole, 1: block, 2: heading, 3: bold, 4: code } of shown.matchAll(MARKED_UP)) {
      if (index > end) parts.push(visible(shown.slice(end, index)));
      if (block) parts.push(element("code", { class: "code-block" }, visible(block.replace(/^```[^\n]*\n/, "").replace(/\n```[^\S\n]*$/, ""))));
      else if (code) parts.push(element("code", {}, visible(code)));
      else parts.push(element("b", {}, visible(bold ?? heading)));
      end = index + whole.length;
    }
    return [...parts, visible(shown.slice(end))];
  });
}

/** Return a text's value if it is a JSON object or array, otherwise undefined. */
function jsonIn(text) {
  if (typeof text !== "string" || !/^\s*[{[]/.test(text)) return undefined;
  try {
    const value = parsed(text);
    return typeof value === "object" && value !== null ? value : undefined;
  } catch {
    return undefined;
  }
}

/** Draw any value. A text is drawn as prose or, if it is JSON or stands for an image, as the value or image. */
function drawValue(value, depth = 0) {
  if (typeof value === "string") return drawText(value, depth);
  if (value === null || typeof value !== "object") return element("span", { class: "value" }, String(value));
  if (depth > DEEPEST) return element("span", { class: "value" }, "…");
  const blocks = contentBlocks(value);
  return blocks ? element("div", { class: "blocks" }, ...blocks) : drawTree(value, depth);
}

function drawText(text, depth) {
  const image = IMAGE.exec(text);
  if (image) return drawImage(image[1]);
  const inner = jsonIn(text);
  if (inner !== undefined && depth <= DEEPEST) return drawValue(inner, depth + 1);
  if (BASE64.test(text)) return element("span", { class: "value" }, `base64, ${text.length.toLocaleString("en")} characters`);
  return drawProse(text, text.length > LONG_VALUE || text.includes("\n") ? "" : "short");
}

/** Draw each content block of a tool's result; null if the value is no list of content blocks, or a very long one. */
function contentBlocks(value) {
  if (!Array.isArray(value) || !value.length || value.length > MOST_ENTRIES) return null;
  if (!value.every((block) => block !== null && typeof block === "object" && typeof block.type === "string")) return null;
  return value.map((block) => {
    if (block.type === "text" && typeof block.text === "string") return drawText(block.text, 1);
    if (block.type === "image" && IMAGE.test(block.data ?? "")) return drawImage(IMAGE.exec(block.data)[1], "An image that the tool returned");
    return drawTree(block, 1);
  });
}

/** Draw an object or an array as lines of names and values; large parts open on demand. */
function drawTree(value, depth) {
  const entries = Array.isArray(value) ? value.map((one, index) => [String(index), one]) : Object.entries(value);
  if (!entries.length) return element("span", { class: "value" }, Array.isArray(value) ? "[]" : "{}");
  const list = element("dl", { class: "tree" });
  const add = (from) => {
    for (const [name, one] of entries.slice(from, from + MOST_ENTRIES)) list.append(...drawEntry(name, one, depth));
    const left = entries.length - from - MOST_ENTRIES;
    if (left <= 0) return;
    const more = element("button", { type: "button", class: "more" }, `${left.toLocaleString("en")} more`);
    const row = element("dd", { class: "wide" }, more);
    more.addEventListener("click", () => {
      row.remove();
      add(from + MOST_ENTRIES);
    });
    list.append(row);
  };
  add(0);
  return list;
}

function drawEntry(name, value, depth) {
  const inner = typeof value === "string" ? jsonIn(value) ?? value : value;
  const isTree = inner !== null && typeof inner === "object";
  if (!isTree) return [element("dt", {}, visible(name)), element("dd", {}, drawValue(inner, depth + 1))];
  if (Array.isArray(inner) && inner.length && isBrief(inner)) return [element("dt", {}, visible(name)), element("dd", {}, drawProse(inner.join(", "), "short"))];
  const whole = written(inner);
  if (whole.length <= 2) return [element("dt", {}, visible(name)), element("dd", { class: "brief" }, whole)];
  if (whole.length <= LONG_VALUE && depth > 0) return [element("dt", {}, visible(name)), element("dd", { class: "brief" }, visible(whole))];
  const fold = lazyFold(
    [element("span", { class: "key" }, visible(name)), element("span", { class: "summary" }, sizeOf(inner))],
    () => [drawValue(inner, depth + 1)],
    { open: depth < 1 && whole.length < LONG_PROSE },
  );
  return [element("dd", { class: "wide" }, fold)];
}

function sizeOf(value) {
  const count = Array.isArray(value) ? value.length : Object.keys(value).length;
  return Array.isArray(value) ? many(count, "item") : many(count, "field");
}

/** Make a part that opens and closes; its contents are drawn when it is first opened. */
function lazyFold(summary, contents, { open = false, kind = "", changed = () => {} } = {}) {
  const fold = element("details", { class: `fold ${kind}` }, element("summary", {}, ...summary));
  let filled = false;
  const fill = () => {
    if (filled || !fold.open) return;
    filled = true;
    fold.append(element("div", { class: "fold-body" }, ...contents().filter(Boolean)));
  };
  fold.fill = fill;
  fold.open = open;
  fill();
  fold.addEventListener("toggle", () => {
    fill();
    changed(fold.open);
  });
  return fold;
}
