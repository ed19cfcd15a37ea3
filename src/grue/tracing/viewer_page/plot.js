// A plot of one number over the turns: a number from the host's facts, or what a turn took.

const PLOT = { height: 300, left: 56, right: 16, top: 14, bottom: 26 };
const MOST_SERIES = 60;
const OF_TURNS = [
  ["seconds", "time of a turn, in seconds", (turn) => turn.length],
  ["requests", "requests to the model", (turn) => turn.requests],
  ["tool calls", "tool calls", (turn) => turn.tool_calls],
  ["input tokens", "tokens sent to the model", (turn) => turn.usage.input_tokens ?? 0],
  ["output tokens", "tokens from the model", (turn) => turn.usage.output_tokens ?? 0],
  ["cost", "cost in USD", (turn) => turn.usage.cost_usd],
];

/** Return the series (60 at most) with at least two points, not all 0, by name; the numbers in facts first. */
function seriesOf(trace) {
  const series = new Map();
  const add = (name, what, point) => {
    if (!series.has(name)) {
      if (series.size >= MOST_SERIES) return;
      series.set(name, { name, what, points: [] });
    }
    series.get(name).points.push(point);
  };
  for (const passage of trace.passageOf.values()) {
    if (passage.kind !== "fact" || !passage.at.number) continue;
    const message = trace.messageOf.get(passage.seq);
    for (const [name, value] of numbersIn(bodyOf(message))) add(name, `${name}, from ${message.kind}`, { turn: passage.at, seq: passage.seq, value });
  }
  for (const turn of trace.turns.filter(({ number }) => number)) {
    for (const [name, what, of] of OF_TURNS) {
      const value = of(turn);
      if (typeof value === "number" && Number.isFinite(value)) add(name, what, { turn, seq: 0, value });
    }
  }
  return new Map([...series].filter(([, { points }]) => points.length > 1 && (points.some(({ value }) => value !== 0))));
}

/** Return the numbers in a fact by name, including the numbers in objects within the fact. */
function numbersIn(body, before = "", depth = 0) {
  if (body === null || typeof body !== "object" || Array.isArray(body)) return [];
  return Object.entries(body).flatMap(([name, value]) => {
    if (name === "turn" || name === "type") return [];
    const path = before ? `${before}.${name}` : name;
    if (typeof value === "number") return [[path, value]];
    return depth < 2 ? numbersIn(value, path, depth + 1) : [];
  });
}

class Plot {
  constructor(trace, { picked, changed }) {
    Object.assign(this, { trace, picked, changed, name: "", at: 0 });
    this.box = byId("plot");
  }

  /** Draw the series `name`; if there is none of this name, the score; without a score, the first series. */
  show(name = this.name) {
    this.series = seriesOf(this.trace);
    if (!this.series.size) {
      this.box.replaceChildren(element("p", { class: "summary empty" }, "There is no number that more than one turn has."));
      return;
    }
    this.name = this.series.has(name) ? name : this.series.has("score") ? "score" : this.series.keys().next().value;
    const select = element("select", { id: "series", "aria-label": "What is plotted" });
    select.append(...[...this.series.keys()].map((each) => element("option", { value: each, selected: each === this.name ? "" : null }, visible(each))));
    select.addEventListener("input", () => {
      this.changed(select.value);
      this.show(select.value);
      byId("series").focus();
    });
    const { points, what } = this.series.get(this.name);
    this.points = points;
    this.reading = element("output", { id: "reading", "aria-live": "polite" });
    this.box.replaceChildren(
      element("div", { class: "bar" }, element("h2", {}, visible(what)), select),
      this.draw(points),
      element("p", { class: "bar" }, this.reading),
      lazyFold(["As a table"], () => [this.table(points)]),
    );
  }

  draw(points) {
    const width = Math.max(240, this.box.clientWidth - 24);
    const values = points.map(({ value }) => value);
    const [low, high] = [Math.min(0, values.reduce((a, b) => Math.min(a, b))), values.reduce((a, b) => Math.max(a, b))];
    const [first, last] = [points[0].turn.number, points.reduce((most, { turn }) => Math.max(most, turn.number), 1)];
    const x = (turn) => PLOT.left + ((turn - first) / Math.max(last - first, 1)) * (width - PLOT.left - PLOT.right);
    const y = (value) => PLOT.height - PLOT.bottom - ((value - low) / (high - low || 1)) * (PLOT.height - PLOT.top - PLOT.bottom);
    const svg = shape("svg", { class: "plot", width, height: PLOT.height, tabindex: "0", role: "img", "aria-label": `${this.name} over turns ${first} to ${last}. Arrow keys move from point to point, Enter goes to the turn.` });
    svg.append(...gridLines(low, high, y, width), ...turnNames(first, last, x));
    svg.append(shape("path", { class: "plot-line", d: points.map(({ turn, value }, at) => `${at ? "L" : "M"}${x(turn.number)} ${y(value)}`).join("") }));
    this.cursor = svg.appendChild(shape("circle", { class: "plot-cursor", r: 5, cx: -20, cy: -20 }));
    const nearest = (event) => {
      const turn = first + ((event.offsetX - PLOT.left) / Math.max(width - PLOT.left - PLOT.right, 1)) * (last - first);
      return points.reduce((best, point, index) => (Math.abs(point.turn.number - turn) < Math.abs(points[best].turn.number - turn) ? index : best), 0);
    };
    Object.assign(this, { x, y });
    svg.addEventListener("mousemove", (event) => this.read(nearest(event)));
    svg.addEventListener("click", (event) => this.picked(points[nearest(event)]));
    svg.addEventListener("keydown", (event) => this.keyDown(event));
    svg.addEventListener("focus", () => this.read(this.at));
    return svg;
  }

  keyDown(event) {
    const steps = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity };
    if (event.key in steps) this.read(Math.max(0, Math.min(this.points.length - 1, this.at + steps[event.key])));
    else if (event.key === "Enter") this.picked(this.points[this.at]);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** Move the cursor to a point, and write its turn and value below the plot. */
  read(index) {
    this.at = Math.min(index, this.points.length - 1);
    const { turn, value } = this.points[this.at];
    this.cursor.setAttribute("cx", this.x(turn.number));
    this.cursor.setAttribute("cy", this.y(value));
    this.reading.replaceChildren(turnLink(turn), ` ${this.name} ${figure(value)}`, turn.said ? ` · ${turn.said}` : "");
  }

  table(points) {
    const shown = points.slice(0, 2000).map(({ turn, value }) => element("tr", {}, element("td", {}, turnLink(turn)), element("td", {}, figure(value))));
    return element("table", { class: "numbers" }, element("thead", {}, element("tr", {}, element("th", {}, "turn"), element("th", {}, visible(this.name)))), element("tbody", {}, ...shown));
  }
}

const figure = (value) => (Number.isInteger(value) ? value.toLocaleString("en") : String(Number(value.toPrecision(6))));

function gridLines(low, high, y, width) {
  const step = niceStep(high - low || 1, 5);
  const lines = [];
  for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-6; value += step) {
    const at = y(value);
    lines.push(shape("path", { class: "tick", d: `M${PLOT.left} ${at}H${width - PLOT.right}` }));
    lines.push(shape("text", { class: "tick-name", x: PLOT.left - 6, y: at + 4, "text-anchor": "end" }, figure(Number(value.toPrecision(6)))));
  }
  return lines;
}

function turnNames(first, last, x) {
  const step = Math.max(1, niceStep(last - first || 1, 8));
  const start = Math.ceil(first / step);
  // Count the names: from 2 ** 53 on, `turn += step` would not end.
  return Array.from({ length: Math.max(0, Math.floor(last / step) - start + 1) }, (_, number) => {
    const turn = (start + number) * step;
    return shape("text", { class: "tick-name", x: x(turn), y: PLOT.height - 8, "text-anchor": "middle" }, String(turn));
  });
}
