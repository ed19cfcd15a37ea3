// The report of a fleet: its points, bars and rows lead to the episodes behind them.

const MOST_LISTED = 300;
const MOST_BARS = 24;
const NEAR = 14; // how far from a point, in pixels, a click still means it
const AXES = [["usd", "US dollars"], ["tokens", "tokens"], ["seconds", "seconds"], ["turns", "turns"], ["calls", "tool calls"]];

const short = (value) => (value === null || value === undefined ? "" : String(Number(value.toPrecision(3))));
const mean = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;

/** Return a colour of the style sheet in the current theme, as a value that a canvas can use. */
function colour(name) {
  const probe = byId("probe");
  probe.style.color = `var(${name})`;
  return getComputedStyle(probe).color;
}

/** A plot of points on a canvas. A click, or the arrow keys and Enter, choose one. */
class Points {
  constructor(canvas, choose) {
    Object.assign(this, { canvas, choose, points: [], at: -1 });
    canvas.addEventListener("click", (event) => this.click(event));
    canvas.addEventListener("keydown", (event) => this.key(event));
    canvas.addEventListener("blur", () => this.move(-1));
  }

  /** Show points; each has its x, its y, and the episode or case that it stands for. */
  show(points, { name, across, up }) {
    this.points = points.sort((one, other) => one.x - other.x || one.y - other.y);
    Object.assign(this, { across, up, at: -1 });
    this.canvas.setAttribute("aria-label", `${name}: ${many(points.length, "point")}. Arrow keys go from one to the next, Enter opens it.`);
    this.draw();
  }

  draw() {
    const { canvas, points } = this;
    const box = canvas.getBoundingClientRect();
    if (!box.width) return;
    const scale = devicePixelRatio || 1;
    canvas.width = Math.round(box.width * scale);
    canvas.height = Math.round(box.height * scale);
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    const room = { left: 48, right: 12, top: 16, bottom: 40 };
    const [x0, x1] = range(points.map(({ x }) => x));
    const [y0, y1] = range(points.map(({ y }) => y));
    const across = (x) => room.left + ((x - x0) / (x1 - x0)) * (box.width - room.left - room.right);
    const up = (y) => box.height - room.bottom - ((y - y0) / (y1 - y0)) * (box.height - room.top - room.bottom);
    pen.font = "11px sans-serif";
    pen.fillStyle = colour("--dim");
    pen.strokeStyle = colour("--line");
    if (!points.length) pen.fillText("There is nothing to show.", room.left, box.height / 2);
    for (const y of [y0, (y0 + y1) / 2, y1]) {
      pen.fillText(short(y), 4, up(y) + 4);
      pen.beginPath();
      pen.moveTo(room.left, up(y));
      pen.lineTo(box.width - room.right, up(y));
      pen.stroke();
    }
    pen.fillText(short(x0), room.left, box.height - 14);
    pen.textAlign = "right";
    pen.fillText(short(x1), box.width - room.right, box.height - 14);
    pen.textAlign = "center";
    pen.fillText(`${this.across} (across), ${this.up} (up)`, box.width / 2, box.height - 3);
    pen.globalAlpha = points.length > 2000 ? 0.3 : 0.7;
    const ink = ["--accent", "--tool", "--warn", "--model", "--fail", "--good"].map(colour);
    // Scores of 0 and 1 would lie on two lines: such points are spread a little, each always to the same place.
    const few = new Set(points.map(({ y }) => y)).size <= 12 && points.length > 100;
    for (const [at, point] of points.entries()) {
      Object.assign(point, { left: across(point.x), top: up(point.y) + (few ? ((at * 7919) % 19) - 9 : 0) });
      pen.fillStyle = ink[point.ink % ink.length];
      pen.beginPath();
      pen.arc(point.left, point.top, 3.5, 0, 7);
      pen.fill();
    }
    pen.globalAlpha = 1;
    const chosen = points[this.at];
    if (!chosen) return;
    pen.strokeStyle = colour("--text");
    pen.lineWidth = 2;
    pen.beginPath();
    pen.arc(chosen.left, chosen.top, 7, 0, 7);
    pen.stroke();
    pen.textAlign = chosen.left > box.width / 2 ? "right" : "left";
    pen.fillStyle = colour("--text");
    pen.fillText(chosen.label, chosen.left + (chosen.left > box.width / 2 ? -10 : 10), Math.max(20, chosen.top - 8));
  }

  move(at) {
    this.at = at;
    this.draw();
  }

  click(event) {
    const far = ({ left, top }) => Math.hypot(left - event.offsetX, top - event.offsetY);
    let [nearest, best] = [-1, NEAR];
    this.points.forEach((point, at) => {
      if (far(point) < best) [nearest, best] = [at, far(point)];
    });
    if (nearest < 0) return;
    this.move(nearest);
    this.choose(this.points[nearest].stands);
  }

  key(event) {
    const last = this.points.length - 1;
    const next = { ArrowRight: this.at + 1, ArrowUp: this.at + 1, ArrowLeft: this.at - 1, ArrowDown: this.at - 1, Home: 0, End: last }[event.key];
    if (next !== undefined && last >= 0) this.move(Math.min(last, Math.max(0, next)));
    else if (event.key === "Enter" && this.points[this.at]) this.choose(this.points[this.at].stands);
    else return;
    event.preventDefault();
  }
}

function range(values) {
  let [least, most] = [Infinity, -Infinity];
  for (const value of values) [least, most] = [Math.min(least, value), Math.max(most, value)];
  if (least > most) return [0, 1];
  return least === most ? [least - 0.5, most + 0.5] : [least, most];
}

/** Make a button that looks like a link. */
function opener(text, open) {
  const button = element("button", { type: "button", class: "link" }, text);
  button.addEventListener("click", open);
  return button;
}

class Report {
  constructor(data) {
    Object.assign(this, data);
    const columns = Object.entries(data.episodes);
    this.all = data.episodes.id.map((_, at) => Object.fromEntries(columns.map(([name, values]) => [name, values[at]])));
    this.words = this.cases.map((text) => text.toLowerCase());
    byId("title").textContent = this.title;
    const played = this.all.filter(({ outcome }) => outcome === "scored" || outcome === "failed").length;
    const earlier = this.earlier ? `, ${this.earlier.toLocaleString("en")} not in the latest sweep and left out` : "";
    byId("facts").textContent = `${many(this.all.length, "episode")}, ${(this.all.length - played).toLocaleString("en")} without a result${earlier}`;
    this.costs = new Points(byId("costs"), (episode) => this.open(episode));
    this.changes = new Points(byId("cases"), ({ title, episodes }) => this.list(title, episodes));
    this.choices();
    this.listen();
    this.drawCells();
    this.show();
    this.address();
  }

  /** The score's name, as the titles of the table and the plots show it. */
  get scoreTitle() {
    return this.lower_is_better ? `${this.score} (lower is better)` : this.score;
  }

  choices() {
    for (const id of ["cell", "from", "to"]) byId(id).append(...this.cells.map(({ name }, number) => element("option", { value: String(number) }, name)));
    byId("to").value = String(Math.min(1, this.cells.length - 1));
    const known = AXES.filter(([name]) => this.all.some((episode) => episode[name]));
    byId("across").append(...(known.length ? known : AXES.slice(2, 3)).map(([name, words]) => element("option", { value: name }, words)));
  }

  listen() {
    byId("theme").addEventListener("click", () => {
      toggleTheme();
      this.redraw();
    });
    for (const id of ["search", "cell", "across", "from", "to"]) byId(id).addEventListener("input", () => this.show());
    byId("close").addEventListener("click", () => this.close());
    addEventListener("resize", () => this.redraw());
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw());
    addEventListener("hashchange", () => this.address());
    document.addEventListener("keydown", (event) => {
      if (event.key === "Escape") this.close();
      if (event.key !== "/" || event.target.matches("input")) return;
      event.preventDefault();
      byId("search").select();
    });
  }

  redraw() {
    this.costs.draw();
    this.changes.draw();
  }

  /** Draw the parts of the report that depend on the filters. */
  show() {
    const word = byId("search").value.trim().toLowerCase();
    const cell = byId("cell").value;
    const inCase = (episode) => !word || this.words[episode.case].includes(word);
    const found = this.all.filter((episode) => inCase(episode) && (cell === "" || episode.cell === Number(cell)));
    byId("count").textContent = found.length < this.all.length ? `${found.length.toLocaleString("en")} of ${many(this.all.length, "episode")}` : "";
    this.drawCosts(found);
    this.drawCases(this.all.filter(inCase));
    this.drawBars("turns-bars", found, "turns", (value) => short(value));
    this.drawBars("time-bars", found, "seconds", duration);
    this.drawFailures(found);
  }

  drawCells() {
    const ends = this.cells.flatMap(({ low, mean: middle, high }) => [low, middle, high]).filter((value) => value !== null);
    const [least, most] = range(ends);
    const across = (value) => 6 + (188 * (value - least)) / (most - least);
    const head = ["cell", this.scoreTitle, "95 % interval", "", "episodes", "failed", "missing", "cases"];
    const rows = this.cells.map((cell, number) => {
      const drawing = shape("svg", { viewBox: "0 0 200 16", width: "100%", height: "16", role: "img", "aria-label": cell.mean === null ? "no score" : short(cell.mean) });
      drawing.append(shape("line", { class: "whisker-line", x1: 6, x2: 194, y1: 8, y2: 8 }));
      if (cell.low !== null) drawing.append(shape("line", { class: "whisker", x1: across(cell.low), x2: across(cell.high), y1: 8, y2: 8 }));
      if (cell.mean !== null) drawing.append(shape("circle", { class: "middle", cx: across(cell.mean), cy: 8, r: 4 }));
      const open = opener(cell.name, () => this.list(cell.name, this.all.filter((episode) => episode.cell === number)));
      const interval = cell.low === null ? (cell.cases < 15 ? "too few cases" : "needs numpy and scipy") : `${short(cell.low)} to ${short(cell.high)}`;
      const numbers = [cell.episodes, cell.failed, cell.missing, cell.cases].map((value) => element("td", { class: "number" }, value.toLocaleString("en")));
      return element("tr", {}, element("td", {}, open), element("td", { class: "number" }, short(cell.mean)), element("td", { class: "number" }, interval), element("td", { class: "wide" }, drawing), ...numbers);
    });
    const titles = head.map((name, at) => element("th", { class: at && at !== 3 ? "number" : null }, name));
    byId("cells").replaceChildren(element("table", {}, element("thead", {}, element("tr", {}, ...titles)), element("tbody", {}, ...rows)));
    byId("verdicts").replaceChildren(...this.verdicts.map((text) => element("li", {}, text)));
  }

  drawCosts(found) {
    const across = byId("across").value;
    const points = found.filter((episode) => episode.score !== null && episode[across] !== null);
    const what = byId("across").selectedOptions[0].textContent;
    this.costs.show(
      points.map((episode) => ({ x: episode[across], y: episode.score, ink: episode.cell, stands: episode, label: `${this.cells[episode.cell].name}: ${short(episode.score)}, ${short(episode[across])}` })),
      { name: "Score and cost of each episode", across: what, up: this.scoreTitle },
    );
  }

  /** Draw a point for each case, at the difference of its mean scores in the two cells. */
  drawCases(found) {
    const [from, to] = ["from", "to"].map((id) => Number(byId(id).value));
    const scored = Map.groupBy(found.filter(({ score }) => score !== null), (episode) => episode.case);
    const pairs = [...scored].map(([number, episodes]) => ({ number, sides: [from, to].map((cell) => episodes.filter((episode) => episode.cell === cell)) }));
    const [below, above] = this.lower_is_better ? [5, 4] : [4, 5]; // red for a loss, green for a gain
    const scores = (episodes) => mean(episodes.map(({ score }) => score));
    const changes = pairs.filter(({ sides }) => sides.every(({ length }) => length)).map(({ number, sides }) => ({ number, sides, change: scores(sides[1]) - scores(sides[0]) }));
    changes.sort((one, other) => one.change - other.change);
    this.changes.show(
      changes.map(({ number, sides, change }, at) => {
        const title = `${change > 0 ? "+" : ""}${short(change)}: ${this.cases[number] || "the case"}`;
        return { x: at + 1, y: change, ink: change < 0 ? below : change > 0 ? above : 0, label: title.slice(0, 60), stands: { title, episodes: sides.flat() } };
      }),
      { name: "Difference of each case", across: "cases by difference", up: `${this.scoreTitle}, second cell minus first` },
    );
  }

  drawBars(id, found, name, words) {
    const episodes = found.filter((episode) => episode[name] !== null);
    const [least, most] = range(episodes.map((episode) => episode[name]));
    const whole = name === "turns" && most - least < MOST_BARS;
    const count = whole ? Math.round(most - least) + 1 : MOST_BARS;
    const step = whole ? 1 : (most - least) / count;
    const start = whole ? Math.ceil(least) : least;
    const bars = Array.from({ length: count }, () => []);
    for (const episode of episodes) bars[Math.max(0, Math.min(count - 1, Math.floor((episode[name] - start) / step)))].push(episode);
    const highest = Math.max(1, ...bars.map((bar) => bar.length));
    byId(id).replaceChildren(...bars.map((bar, at) => {
      const title = whole ? many(start + at, "turn") : `${words(start + at * step)} to ${words(start + (at + 1) * step)}`;
      const column = element("i");
      column.style.height = `${(110 * bar.length) / highest}px`;
      const button = element("button", { type: "button", title: `${title}: ${many(bar.length, "episode")}`, "aria-label": `${title}: ${many(bar.length, "episode")}` }, column, element("span", {}, at % Math.ceil(count / 8) ? "" : words(start + at * step)));
      button.disabled = !bar.length;
      button.addEventListener("click", () => this.list(title, bar));
      return button;
    }));
  }

  drawFailures(found) {
    const groups = Map.groupBy(found.filter(({ group }) => group >= 0), ({ group }) => group);
    const rows = [...groups].sort(([, one], [, other]) => other.length - one.length).map(([number, episodes]) => {
      const { what, text } = this.groups[number];
      const open = opener(text || what, () => this.list(text || what, episodes));
      return element("tr", {}, element("td", { class: "number" }, episodes.length.toLocaleString("en")), element("td", {}, what), element("td", {}, open));
    });
    const table = element("table", {}, element("tbody", {}, ...rows));
    byId("failures-list").replaceChildren(rows.length ? table : element("p", { class: "summary" }, "None."));
  }

  list(title, episodes) {
    if (episodes.length === 1) {
      this.open(episodes[0]);
      return;
    }
    const items = episodes.slice(0, MOST_LISTED).map((episode) => element("li", {}, opener(this.lineOf(episode), () => this.open(episode))));
    const more = episodes.length - items.length;
    this.panel(`${title} (${many(episodes.length, "episode")})`, element("ul", {}, ...items), more > 0 ? element("p", { class: "summary" }, `${more.toLocaleString("en")} more: narrow the search.`) : null);
  }

  lineOf(episode) {
    const score = episode.score === null ? episode.outcome : short(episode.score);
    return `${score}  ${this.cells[episode.cell].name}  ${this.cases[episode.case]}`;
  }

  open(episode) {
    const run = `${this.fleet}/${episode.id.slice(0, 2)}/${episode.id}/attempt-${episode.attempt}`;
    const facts = [
      ["cell", this.cells[episode.cell].name],
      ["case", this.cases[episode.case]],
      ["outcome", episode.outcome],
      [this.score, short(episode.score)],
      ["cost", episode.usd ? `$${short(episode.usd)}` : ""],
      ["tokens", episode.tokens ? episode.tokens.toLocaleString("en") : ""],
      ["time", episode.seconds ? duration(episode.seconds) : ""],
      ["turns", short(episode.turns)],
      ["tool calls", short(episode.calls)],
      ["went wrong", episode.group < 0 ? "" : [this.groups[episode.group].what, this.groups[episode.group].text].filter(Boolean).join(": ")],
    ].filter(([, value]) => value !== "");
    const near = episode.message ? ` --message ${episode.message}` : "";
    const commands = [`grue trace html ${quoted(run)} --open`, `grue trace show ${quoted(run)}${near}`, `grue fleet show ${quoted(this.fleet)} ${episode.id}`];
    const folder = element("a", { href: `${this.folder}/${episode.id.slice(0, 2)}/${episode.id}/` }, "Its folder");
    this.panel(`Episode ${episode.id.slice(0, 10)}`, element("dl", {}, ...facts.flatMap(([name, value]) => [element("dt", {}, name), element("dd", {}, value)])), ...commands.map((command) => element("code", {}, command)), folder);
    history.replaceState(null, "", `#episode=${episode.id}`);
  }

  panel(title, ...children) {
    byId("chosen-title").textContent = title;
    byId("chosen-body").replaceChildren(...children.filter((child) => child !== null));
    byId("chosen").hidden = false;
    byId("chosen").focus();
    this.redraw();
  }

  close() {
    if (byId("chosen").hidden) return;
    byId("chosen").hidden = true;
    history.replaceState(null, "", "#");
    byId("sections").focus();
    this.redraw();
  }

  address() {
    const id = new URLSearchParams(location.hash.slice(1)).get("episode");
    const episode = id && this.all.find((each) => each.id === id);
    if (episode) this.open(episode);
  }
}

const report = new Report(JSON.parse(byId("data").textContent));
document.documentElement.dataset.ready = String(report.all.length);
