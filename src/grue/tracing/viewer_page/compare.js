// Two episodes side by side, turn by turn. Turns that are the same are folded; what differs is marked.

const MOST_PASSAGES = 300;
const READING = { unfolded: false, words: [] };
const CARDS = { card: true };
const UPDATE_MS = 400;

class Pair {
  constructor(number, left, right) {
    Object.assign(this, { number, sides: [left, right], differences: [], open: null });
  }

  get differs() {
    return this.differences.length > 0;
  }

  get isOpen() {
    return this.open ?? this.differs;
  }
}

class Comparison {
  constructor(traces, { differences, more }) {
    this.traces = traces;
    this.more = more;
    this.only = false;
    this.pairs = pairsOf(traces);
    this.marks = [new Map(), new Map()]; // what differs, by the number of the message, on each side
    for (const row of differences) this.note(row);
    this.count = differences.length;
    this.list = new FlowList(byId("pairs"), {
      draw: (item) => (item.card ? this.drawCards() : this.drawPair(item)),
      estimate: (item) => (item.card ? 300 : item.differs ? 420 : 34),
    });
    this.fillIn();
    this.listen();
    this.show();
    this.goToAddress();
  }

  note([left, right, text, details, turn]) {
    [left, right].forEach((seq, side) => seq && this.marks[side].set(seq, text));
    this.pairs.get(turn)?.differences.push({ left, right, text, details });
  }

  fillIn() {
    const names = this.traces.map((trace) => trace.episode.title);
    byId("title").textContent = "Two episodes";
    byId("left-name").textContent = `A  ${names[0]}`;
    byId("right-name").textContent = `B  ${names[1]}`;
    const first = this.differing[0];
    const rest = this.count > 1 ? ` and ${(this.count - 1).toLocaleString("en")}${this.more ? " or more" : ""} further differences` : "";
    byId("verdict").replaceChildren(...(first
      ? [badge("differ", "fail"), " from ", element("a", { href: `#turn-${first.number}` }, name(first).toLowerCase()), ` on: ${first.differences[0].text}${rest}`]
      : [badge("identical", "good"), " except for numbers, times and ids"]));
    for (const id of ["previous", "next", "only"]) byId(id).disabled = !first;
  }

  get differing() {
    return [...this.pairs.values()].filter((pair) => pair.differs);
  }

  get items() {
    return [CARDS, ...[...this.pairs.values()].filter((pair) => !this.only || pair.differs)];
  }

  show() {
    this.list.show(this.items);
  }

  /** Read the pieces of both traces, and from time to time draw new messages in the turns that are unfolded. */
  async readRest(sides) {
    let touched = new Set();
    let [shown, began] = [performance.now(), performance.now()];
    while (sides.some((pieces) => !pieces.done)) {
      const read = sides.map((pieces) => pieces.take());
      read.forEach((piece, side) => {
        for (const item of piece ? this.traces[side].extend(piece) : []) touched.add(this.pairs.get(item.turn));
      });
      const now = performance.now();
      if (now - shown > UPDATE_MS) {
        this.update(touched);
        [touched, shown] = [new Set(), now];
      }
      if (read.some(Boolean) && now - began < SLICE_MS) continue;
      await idle();
      began = performance.now();
    }
    this.update(touched);
  }

  update(touched) {
    this.list.change(this.items, new Set([...touched].filter((pair) => pair.isOpen)));
  }

  drawCards() {
    return element("article", { class: "pair cards", "aria-label": "The episodes" },
      element("div", { class: "columns" }, ...this.traces.map((trace, side) => element("div", { "data-side": side }, drawCard(trace)))));
  }

  drawPair(pair) {
    const [left, right] = pair.sides;
    const missing = !left ? "only in B" : !right ? "only in A" : "";
    const outcomes = pair.sides.filter(Boolean).map((turn) => turn.outcome && badge(turn.outcome, outcomeGrade(turn))).filter(Boolean);
    const summary = [element("h3", {}, name(pair)), badge(pair.differs ? missing || many(pair.differences.length, "difference") : "the same", pair.differs ? "fail" : "good"), ...outcomes];
    const contents = () => [
      ...pair.differences.slice(0, 1).map(({ text, details }) => (details.length ? element("pre", { class: "told fail" }, details.map((row) => row.slice(2)).join("\n")) : element("p", { class: "told fail" }, text))),
      element("div", { class: "columns" }, ...pair.sides.map((turn, side) => this.drawSide(turn, side))),
    ];
    const fold = lazyFold(summary, contents, { open: pair.isOpen, changed: (open) => {
      pair.open = open;
    } });
    return element("article", { class: `pair ${pair.differs ? "differs" : ""}`, "aria-label": name(pair) }, fold);
  }

  drawSide(turn, side) {
    const trace = this.traces[side];
    const box = element("div", { class: "side", "data-side": side });
    if (!turn) {
      box.append(element("p", { class: "summary" }, "There is no such turn here."));
      return box;
    }
    if (!turn.passages.length && !trace.whole) box.append(element("p", { class: "summary" }, "The page is still reading this turn."));
    for (const passage of turn.passages.slice(0, MOST_PASSAGES)) {
      const made = drawPassage(trace, passage, READING);
      const marks = trace.messagesOf(passage).map(({ seq }) => this.marks[side].get(seq)).filter(Boolean);
      if (marks.length) {
        made.classList.add("diverges");
        made.title = marks[0];
      }
      box.append(made);
    }
    const left = turn.passages.length - MOST_PASSAGES;
    if (left > 0) box.append(element("p", { class: "summary" }, `and ${many(left, "more passage")}`));
    return box;
  }

  // --- moving ---

  go(pair) {
    if (!pair) return;
    this.list.activate(pair, "top");
    setAddress(`#turn-${pair.number}`);
  }

  /** Go to the next or the previous turn that differs. */
  step(by) {
    const all = this.differing;
    const at = this.list.active?.number ?? -1;
    this.go(by > 0 ? all.find((pair) => pair.number > at) : all.findLast((pair) => pair.number < at));
  }

  toggleOnly() {
    this.only = !this.only;
    byId("only").setAttribute("aria-pressed", String(this.only));
    this.show();
  }

  goToAddress() {
    const turn = /^#turn-(\d+)$/.exec(location.hash)?.[1];
    const pair = this.pairs.get(Number(turn));
    if (turn && pair) this.go(pair);
  }

  // --- messages and requests ---

  click(event) {
    const within = event.target.closest?.("[data-side]");
    const trace = within ? this.traces[Number(within.dataset.side)] : this.shown;
    const asked = event.target.closest?.("[data-request]");
    const seq = /^#(\d+)$/.exec(event.target.closest?.("a")?.getAttribute("href") ?? "")?.[1];
    if (!trace || (!asked && !seq)) return;
    event.preventDefault();
    this.shown = trace;
    const message = trace.messageOf.get(Number(asked ? asked.dataset.request : seq));
    if (message) showDialog(asked ? requestView(trace, message) : messageDetail(trace, message, false));
  }

  listen() {
    const clicks = { next: () => this.step(1), previous: () => this.step(-1), only: () => this.toggleOnly(), theme: toggleTheme, "request-close": () => byId("request").close() };
    for (const [id, act] of Object.entries(clicks)) byId(id).addEventListener("click", act);
    const keys = { n: clicks.next, p: clicks.previous, d: clicks.only };
    document.addEventListener("click", (event) => this.click(event));
    document.addEventListener("keydown", (event) => {
      if (!event.ctrlKey && !event.metaKey && !event.altKey && !byId("request").open) keys[event.key]?.();
    });
    addEventListener("hashchange", () => this.goToAddress());
  }
}

const name = ({ number }) => (number ? `Turn ${number}` : "Before the first turn");

/** Pair the turns of two traces by their numbers, in the order of the numbers. */
function pairsOf([left, right]) {
  const numbers = [...new Set([...left.turns, ...right.turns].map(({ number }) => number))].sort((one, other) => one - other);
  return new Map(numbers.map((number) => [number, new Pair(number, left.turnOf.get(number), right.turnOf.get(number))]));
}

const read = (id) => JSON.parse(byId(id).textContent);
const traces = ["trace-episode", "other-episode"].map((id) => new Trace(read(id)));
const comparison = new Comparison(traces, read("trace-comparison"));
byId("pairs").focus({ preventScroll: true });
document.documentElement.dataset.shown = String(comparison.count);
await comparison.readRest(traces.map((_, side) => new Pieces(side)));
document.documentElement.dataset.ready = String(comparison.count);
