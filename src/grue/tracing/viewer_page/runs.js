// The index of a folder of episodes: a table that can be sorted and searched, and in which two can be compared.

const BATCH = 500; // rows that are drawn at once
const tokens = ({ overview: { usage } }) => (usage.input_tokens ?? 0) + (usage.output_tokens ?? 0);
const cost = ({ overview: { usage } }) => usage.cost_usd ?? null;
const score = ({ overview: { results } }) => Object.entries(results).find(([name, value]) => name === "score" && typeof value === "number")?.[1];
const models = ({ overview }) => Object.keys(overview.models).join(", ");

/** Each column: its title, the value that it is sorted by, and what it shows. */
const COLUMNS = [
  ["started", (run) => run.started, (run) => (run.started ? isoTime(run.started).slice(0, 16).replace("T", " ") : "")],
  ["episode", (run) => run.name, (run) => (run.page ? element("a", { href: run.page }, run.name) : run.name)],
  ["about", (run) => run.overview.title, (run) => run.overview.title],
  ["model", models, models],
  ["ended", (run) => run.error || run.overview.ending, ending],
  ["score", (run) => score(run) ?? null, (run) => run.overview.result.replace(/^score /, "") || String(score(run) ?? "")],
  ["turns", (run) => run.overview.turns, (run) => run.overview.turns.toLocaleString("en")],
  ["went wrong", (run) => run.overview.failures, (run) => (run.overview.failures ? String(run.overview.failures) : "")],
  ["requests", (run) => run.overview.requests, (run) => run.overview.requests.toLocaleString("en")],
  ["tool calls", (run) => run.overview.tool_calls, (run) => run.overview.tool_calls.toLocaleString("en")],
  ["tokens", tokens, (run) => tokens(run).toLocaleString("en")],
  ["USD", cost, (run) => (cost(run) === null ? "" : String(Number(cost(run).toPrecision(4))))],
  ["time", (run) => run.overview.seconds, (run) => (run.overview.seconds ? duration(run.overview.seconds) : "")],
];
const NUMBERS_FROM = 5; // the columns from this one on hold numbers

function ending({ error, overview }) {
  if (error) return element("span", { class: "told fail" }, badge("cannot be read", "fail"), ` ${error}`);
  if (!overview.ending) return element("span", { class: "summary" }, "no end recorded");
  return element("span", { title: overview.detail }, badge(overview.ending, overview.grade || "good"));
}

class Runs {
  constructor({ title, folder, runs }) {
    Object.assign(this, { runs, folder, sorted: "started", down: true, chosen: new Set() });
    byId("title").textContent = title;
    for (const run of runs) run.haystack = [run.name, run.episode, run.error, JSON.stringify(run.overview)].join("\n").toLowerCase();
    this.restore();
    this.listen();
    this.show();
  }

  restore() {
    const parts = new URLSearchParams(location.hash.slice(1));
    byId("search").value = parts.get("q") ?? "";
    byId("failures").setAttribute("aria-pressed", String(parts.get("failures") === "1"));
    if (COLUMNS.some(([name]) => name === parts.get("sort"))) this.sorted = parts.get("sort");
    if (parts.has("sort")) this.down = parts.get("down") === "1";
  }

  remember() {
    const parts = new URLSearchParams();
    if (byId("search").value.trim()) parts.set("q", byId("search").value.trim());
    if (this.failuresOnly) parts.set("failures", "1");
    if (this.sorted !== "started" || !this.down) parts.set("sort", this.sorted);
    if (parts.has("sort") && this.down) parts.set("down", "1");
    clearTimeout(this.addressing);
    this.addressing = setTimeout(() => history.replaceState(null, "", `#${parts}`), 200);
  }

  get failuresOnly() {
    return byId("failures").getAttribute("aria-pressed") === "true";
  }

  get found() {
    const word = byId("search").value.trim().toLowerCase();
    const failed = ({ error, overview }) => error || overview.grade || overview.failures;
    const [, value] = COLUMNS.find(([name]) => name === this.sorted);
    const found = this.runs.filter((run) => (!word || run.haystack.includes(word)) && (!this.failuresOnly || failed(run)));
    return found.sort((one, other) => order(value(one), value(other), this.down));
  }

  show() {
    const { found } = this;
    byId("head").replaceChildren(this.drawHead());
    byId("rows").replaceChildren(...found.slice(0, BATCH).map((run) => this.drawRow(run)));
    if (found.length > BATCH) byId("rows").append(this.drawMore(found, BATCH));
    byId("foot").replaceChildren(drawTotals(found));
    byId("facts").textContent = many(this.runs.length, "episode");
    byId("count").textContent = found.length < this.runs.length ? `${found.length.toLocaleString("en")} of ${many(this.runs.length, "episode")}` : "";
    byId("nothing").hidden = found.length > 0;
    byId("table").hidden = !found.length;
  }

  drawHead() {
    return element("tr", {}, element("th", {}, element("span", { class: "summary" }, "compare")), ...COLUMNS.map(([name], column) => {
      const button = element("button", { type: "button", "data-sort": name }, name);
      const direction = this.down ? "descending" : "ascending";
      return element("th", { class: column >= NUMBERS_FROM ? "number" : null, "aria-sort": name === this.sorted ? direction : "none" }, button);
    }));
  }

  drawRow(run) {
    const box = element("input", { type: "checkbox", "aria-label": `Compare ${run.name}` });
    box.checked = this.chosen.has(run);
    box.disabled = Boolean(run.error);
    box.addEventListener("change", () => this.choose(run, box.checked));
    return element("tr", {}, element("td", {}, box), ...COLUMNS.map(([, , show], column) => element("td", { class: column >= NUMBERS_FROM ? "number" : null }, show(run))));
  }

  drawMore(found, from) {
    const more = element("button", { type: "button" }, `Show ${many(Math.min(BATCH, found.length - from), "more episode")}`);
    const row = element("tr", {}, element("td", { colspan: String(COLUMNS.length + 1) }, more));
    more.addEventListener("click", () => {
      row.replaceWith(...found.slice(from, from + BATCH).map((run) => this.drawRow(run)));
      if (found.length > from + BATCH) byId("rows").append(this.drawMore(found, from + BATCH));
    });
    return row;
  }

  /** Choose an episode, or undo that (`chosen`: false). While two are chosen, offer the command that compares them. */
  choose(run, chosen) {
    if (chosen) this.chosen.add(run);
    else this.chosen.delete(run);
    byId("chosen").hidden = this.chosen.size !== 2;
    const paths = [...this.chosen].map(({ name }) => quoted(`${this.folder}/${name}`));
    byId("command").textContent = `grue trace html ${paths.join(" ")} --open`;
  }

  listen() {
    byId("theme").addEventListener("click", toggleTheme);
    byId("search").addEventListener("input", () => this.changed());
    byId("failures").addEventListener("click", () => {
      byId("failures").setAttribute("aria-pressed", String(!this.failuresOnly));
      this.changed();
    });
    byId("head").addEventListener("click", (event) => {
      const { sort } = event.target.dataset;
      if (!sort) return;
      this.down = this.sorted === sort ? !this.down : true;
      this.sorted = sort;
      this.changed();
      byId("head").querySelector(`[data-sort="${CSS.escape(sort)}"]`).focus();
    });
    byId("copy").addEventListener("click", () => navigator.clipboard?.writeText(byId("command").textContent).catch(() => {}));
    addEventListener("hashchange", () => {
      this.restore();
      this.show();
    });
    document.addEventListener("keydown", (event) => {
      if (event.key !== "/" || event.target.matches("input")) return;
      event.preventDefault();
      byId("search").select();
    });
  }

  changed() {
    this.show();
    this.remember();
  }
}

/** Return the order of two values for sorting; missing values come last. */
function order(one, other, down) {
  if (one === null || other === null) return (one === null) - (other === null);
  const less = typeof one === "string" ? one.localeCompare(other) : one - other;
  return down ? -less : less;
}

function drawTotals(runs) {
  const sum = (of) => runs.reduce((total, run) => total + (of(run) ?? 0), 0);
  const totals = { turns: sum(({ overview }) => overview.turns), "went wrong": sum(({ overview }) => overview.failures), requests: sum(({ overview }) => overview.requests), "tool calls": sum(({ overview }) => overview.tool_calls), tokens: sum(tokens) };
  const usd = sum(cost);
  const text = (name) => (name in totals ? totals[name].toLocaleString("en") : name === "USD" && usd ? String(Number(usd.toPrecision(4))) : name === "time" ? duration(sum(({ overview }) => overview.seconds)) : name === "episode" ? "all" : "");
  return element("tr", {}, element("td", {}), ...COLUMNS.map(([name], column) => element("td", { class: column >= NUMBERS_FROM ? "number" : null }, text(name))));
}

const index = new Runs(JSON.parse(byId("data").textContent));
document.documentElement.dataset.ready = String(index.runs.length);
