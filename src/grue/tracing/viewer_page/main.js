// The page as a whole: what is selected, and what a key or a click does.

const TURN_ROW = 44;
const ADDRESS_DELAY_MS = 200;
const KEYS = [
  ["j  ↓", "next message"],
  ["k  ↑", "previous message"],
  ["PgDn  PgUp", "a page on, a page back"],
  ["Home  End", "first, last message"],
  ["n", "next turn"],
  ["p", "previous turn"],
  ["c", "to the message's cause"],
  ["Enter", "into the details"],
  ["Esc", "back to the list; then clear the filters"],
  ["/", "search"],
  ["f", "failures only"],
  ["x", "exact JSON"],
  ["?", "this help"],
];

class Viewer {
  constructor(trace) {
    this.trace = trace;
    this.selected = null; // a message, a turn, or null for the episode
    this.exact = false;
    this.root = document.documentElement;
    this.filters = new Filters(trace, () => this.applyFilters());
    this.list = new VirtualList(byId("messages"), {
      rowHeight: ROW_HEIGHT,
      draw: (item) => (item.seq ? drawMessage(trace, item, this.laneWidth) : drawTurnHead(item)),
      picked: (item) => this.pick(item),
      scrolled: () => this.follow(),
    });
    this.turnList = new VirtualList(byId("turns"), {
      rowHeight: TURN_ROW,
      draw: (turn) => drawTurnEntry(trace, turn),
      picked: (turn) => {
        this.move(turn);
        this.backToList();
      },
    });
    this.fillIn();
    this.listen();
    this.layOut();
    this.orderTurns();
    this.applyFilters();
    this.selectFromAddress();
  }

  fillIn() {
    const { trace } = this;
    byId("title").textContent = trace.episode.title;
    const length = trace.turns.reduce((total, turn) => total + turn.length, 0);
    byId("facts").textContent = `${many(trace.turns.filter((turn) => turn.number).length, "turn")} · ${many(trace.messages.length, "message")} · ${duration(length)} in turns`;
    byId("legend").append(...drawLegend());
    byId("keys").append(...KEYS.flatMap(([key, what]) => [element("dt", {}, key), element("dd", {}, what)]));
  }

  // --- what is where ---

  layOut() {
    const width = byId("messages").clientWidth;
    this.laneWidth = laneWidth(this.trace, width);
    this.root.style.setProperty("--lanes", `${this.laneWidth * this.trace.actors.length}px`);
    byId("lane-names").replaceChildren(...laneNames(this.trace, this.laneWidth));
    this.overview = drawOverview(this.trace, byId("overview").clientWidth);
    byId("overview").replaceChildren(this.overview.svg);
    this.shownTurn = null;
    this.list.forget();
    this.list.redraw();
  }

  applyFilters() {
    const test = this.filters.test();
    const items = [];
    let count = 0;
    for (const turn of this.trace.turns) {
      const messages = this.filters.inUse ? turn.messages.filter(test) : turn.messages;
      if (messages.length) items.push(turn);
      for (const message of messages) items.push(message);
      count += messages.length;
    }
    this.indexOf = new Map(items.map((item, index) => [item, index]));
    this.list.show(items);
    byId("count").textContent = this.filters.inUse ? `${count.toLocaleString("en")} of ${many(this.trace.messages.length, "message")}` : "";
    byId("clear").hidden = !this.filters.inUse;
    byId("nothing").hidden = count > 0;
    if (this.selected && this.indexOf.has(this.selected)) this.list.activate(this.indexOf.get(this.selected), "mid");
    else this.list.box.scrollTop = 0;
  }

  orderTurns() {
    const orders = {
      turn: () => 0,
      longest: (one, other) => other.length - one.length,
      worst: (one, other) => badness(other) - badness(one),
    };
    this.turnList.show([...this.trace.turns].sort(orders[byId("order").value]));
    this.shownTurn = null;
    this.follow();
  }

  /** Show the turn of what is selected, or of what is at the top, in the time line and the list of turns. */
  follow() {
    this.markFound();
    const active = this.list.active;
    const inView = active >= this.list.firstVisible && active <= this.list.lastVisible;
    const item = this.list.items[inView ? active : this.list.firstVisible];
    let turn = item && (item.seq ? this.trace.turnOf.get(item.turn) : item);
    // What came before the first turn has hardly a time line of its own.
    if (turn && !turn.number && !this.selected) turn = this.trace.turns[1] ?? turn;
    if (turn && turn !== this.shownTurn) this.showTurn(turn);
  }

  showTurn(turn) {
    this.shownTurn = turn;
    byId("time-title").replaceChildren(turn.name, turn.outcome ? badge(turn.outcome, outcomeGrade(turn)) : "", element("span", { class: "summary" }, duration(turn.length)));
    byId("timeline").replaceChildren(drawTimeline(this.trace, turn, byId("timeline").clientWidth));
    this.overview.cursor.setAttribute("x", this.trace.turns.indexOf(turn) * this.overview.step);
    this.turnList.activate(this.turnList.items.indexOf(turn));
  }

  /** Mark what was searched for, wherever it can be seen. */
  markFound() {
    if (!CSS.highlights) return;
    const found = new Highlight();
    const word = this.filters.search.value.trim().toLowerCase();
    if (word) for (const range of rangesOf(word, [this.list.space, byId("detail-body")])) found.add(range);
    CSS.highlights.set("found", found);
  }

  // --- what is selected ---

  select(item, where = item && !item.seq ? "top" : "mid") {
    this.selected = item;
    if (item && !this.indexOf.has(item)) this.filters.clear();
    this.list.activate(item ? this.indexOf.get(item) : -1, where);
    this.showDetail();
    this.follow();
  }

  showDetail() {
    const item = this.selected;
    const { title, contents } = !item
      ? episodeDetail(this.trace)
      : item.seq ? messageDetail(this.trace, item, this.exact) : turnDetail(this.trace, item);
    byId("detail-title").textContent = title;
    byId("detail-body").replaceChildren(...contents.filter(Boolean));
    byId("detail-body").scrollTop = 0;
    this.markFound();
  }

  /** Select by key or click: the address follows, without a step in the browser's history. */
  move(item, where) {
    if (!item) return;
    this.select(item, where);
    // Browsers refuse to change it many times a second, as a key that is held down would.
    clearTimeout(this.addressing);
    this.addressing = setTimeout(() => history.replaceState(null, "", address(this.selected)), ADDRESS_DELAY_MS);
  }

  pick(item) {
    this.move(item, "near");
    this.root.dataset.pane = "detail";
  }

  /** Select what the address names: a link was followed, or the page was opened at a message. */
  selectFromAddress() {
    clearTimeout(this.addressing);
    const [, turn, seq] = /^#(?:turn-(\d+)|(\d+))$/.exec(location.hash) ?? [];
    this.select((turn ? this.trace.turnOf.get(Number(turn)) : this.trace.messageOf.get(Number(seq))) ?? null);
  }

  step(by) {
    const { items, active } = this.list;
    const from = active >= 0 ? active : by > 0 ? -1 : items.length;
    this.move(items[Math.max(0, Math.min(items.length - 1, from + by))], "near");
  }

  stepTurn(by) {
    const heads = this.list.items.filter((item) => !item.seq);
    const at = heads.indexOf(this.shownTurn);
    const within = by < 0 && this.selected?.seq;
    this.move(heads[within ? at : at + by]);
  }

  toCause() {
    const cause = this.selected?.seq && this.trace.messageOf.get(this.selected.cause);
    if (cause) location.hash = `#${cause.seq}`;
  }

  // --- panes ---

  intoDetail() {
    this.root.dataset.pane = "detail";
    byId("detail").focus();
  }

  backToList() {
    if (this.root.dataset.pane || !byId("messages").contains(document.activeElement)) {
      delete this.root.dataset.pane;
      byId("turns-button").setAttribute("aria-expanded", "false");
      byId("messages").focus();
    } else if (this.filters.inUse) {
      this.filters.clear();
    }
  }

  toggleTurns() {
    const open = this.root.dataset.pane !== "turns";
    if (open) this.root.dataset.pane = "turns";
    else delete this.root.dataset.pane;
    byId("turns-button").setAttribute("aria-expanded", String(open));
    if (open) byId("turns").focus();
  }

  toggleTheme() {
    const dark = this.root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
    this.root.dataset.theme = dark === "dark" ? "light" : "dark";
  }

  toggleExact() {
    this.exact = !this.exact;
    this.showDetail();
  }

  // --- events ---

  listen() {
    const clicks = {
      "turns-button": () => this.toggleTurns(),
      theme: () => this.toggleTheme(),
      "help-button": () => byId("help").showModal(),
      "help-close": () => byId("help").close(),
      clear: () => this.filters.clear(),
      "clear-too": () => this.filters.clear(),
      close: () => this.backToList(),
      overview: (event) => this.move(this.trace.turns[Math.floor(event.offsetX / this.overview.step)]),
    };
    for (const [id, act] of Object.entries(clicks)) byId(id).addEventListener("click", act);
    byId("detail-body").addEventListener("click", (event) => event.target.id === "exact" && this.toggleExact());
    byId("order").addEventListener("change", () => this.orderTurns());
    addEventListener("hashchange", () => this.selectFromAddress());
    document.addEventListener("keydown", (event) => this.keyDown(event));
    new ResizeObserver(() => this.layOut()).observe(byId("centre"));
  }

  keyDown(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || byId("help").open) return;
    if (event.key === "Escape") this.escape(event);
    else if (event.target.matches("input, select")) this.keyInField(event);
    else this.act(event, this.keyActions(event)[event.key]);
  }

  escape(event) {
    event.preventDefault();
    this.backToList();
  }

  keyInField(event) {
    if (event.key === "Enter") this.act(event, () => byId("messages").focus());
  }

  act(event, action) {
    if (!action) return;
    event.preventDefault();
    action();
  }

  keyActions(event) {
    const page = Math.max(1, Math.floor(byId("messages").clientHeight / ROW_HEIGHT) - 1);
    const anywhere = {
      j: () => this.step(1),
      k: () => this.step(-1),
      n: () => this.stepTurn(1),
      p: () => this.stepTurn(-1),
      c: () => this.toCause(),
      f: () => this.filters.toggleFailures(),
      x: () => this.toggleExact(),
      "/": () => this.filters.search.select(),
      "?": () => byId("help").showModal(),
    };
    const inTurns = { ArrowDown: () => this.stepInTurns(1), ArrowUp: () => this.stepInTurns(-1), Enter: () => this.backToList() };
    const inMessages = {
      ArrowDown: () => this.step(1),
      ArrowUp: () => this.step(-1),
      PageDown: () => this.step(page),
      PageUp: () => this.step(-page),
      Home: () => this.step(-Infinity),
      End: () => this.step(Infinity),
      Enter: () => this.intoDetail(),
    };
    if (byId("turns").contains(event.target)) return { ...anywhere, ...inTurns };
    const elsewhere = event.target.closest("button, a, #detail");
    return elsewhere ? anywhere : { ...anywhere, ...inMessages };
  }

  stepInTurns(by) {
    const { items, active } = this.turnList;
    this.move(items[Math.max(0, Math.min(items.length - 1, active + by))]);
  }
}

const address = (item) => (item.seq ? `#${item.seq}` : `#turn-${item.number}`);

function badness(turn) {
  const failed = turn.outcome && outcomeGrade(turn) === "fail" ? 1e6 : 0;
  const grade = { fail: 1e4, warn: 1e2 }[turn.grade] ?? 0;
  return failed + grade + turn.marks.reduce((total, { count }) => total + count, 0);
}

/** Draw a turn's entry in the list of turns: how it ended, what went wrong, and where its time went. */
function drawTurnEntry(trace, turn) {
  const spent = turn.phases.reduce((total, [, seconds]) => total + seconds, 0);
  const whole = Math.max(spent, turn.length, 1e-9);
  const phases = element("span", { class: "phases" }, ...turn.phases.map(([phase, seconds]) => {
    const piece = element("i", { class: phase });
    piece.style.width = `${(seconds / whole) * 100}%`;
    return piece;
  }));
  phases.style.width = `${Math.max((turn.length / trace.longest) * 100, 1)}%`;
  const marks = turn.marks.map((mark) => badge(markName(mark), mark.grade));
  return element(
    "div",
    { class: `row turn-entry ${turn.grade}`, title: turnFacts(turn) },
    element("span", { class: "turn-line" },
      element("b", {}, turn.number ? String(turn.number) : "–"),
      marks.length
        ? element("span", { class: "marks" }, ...marks)
        : element("span", { class: "summary" }, turn.action || turn.outcome || turn.name),
      element("span", { class: "took" }, duration(turn.length))),
    element("span", { class: "track" }, phases),
  );
}

/** Yield the places of a word in the text of elements. */
function* rangesOf(word, elements) {
  for (const root of elements) {
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      const text = node.data.toLowerCase();
      for (let at = text.indexOf(word); at >= 0; at = text.indexOf(word, at + word.length)) {
        yield new StaticRange({ startContainer: node, startOffset: at, endContainer: node, endOffset: Math.min(at + word.length, node.length) });
      }
    }
  }
}

const read = (id) => JSON.parse(byId(id).textContent);
const viewer = new Viewer(new Trace(read("trace-messages"), read("trace-episode")));
byId("messages").focus({ preventScroll: true });
document.documentElement.dataset.ready = String(viewer.trace.messages.length);
