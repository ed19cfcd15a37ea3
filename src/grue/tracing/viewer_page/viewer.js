// The page as a whole: what is selected, and what a key or a click does.

const TURN_ROW = 44;
const ADDRESS_DELAY_MS = 200;
const UPDATE_MS = 400;
const TABLE_ROW = 28;
const TABS = ["story", "messages", "plot", "table"];

class Viewer {
  constructor(trace) {
    this.trace = trace;
    this.tab = "story";
    this.selected = null; // a message, a turn, or null for the episode
    this.exact = false;
    this.requested = 0; // the request that is shown as it was sent
    this.root = document.documentElement;
    this.filters = new Filters(trace, () => this.filtersChanged());
    this.story = new Story(trace, this.filters, { moved: () => this.follow() });
    this.plot = new Plot(trace, {
      picked: ({ turn, seq }) => this.toStory(seq ? trace.passageOf.get(String(seq)) : turn),
      changed: () => this.addressSoon(),
    });
    this.list = new RowList(byId("messages"), {
      rowHeight: ROW_HEIGHT,
      draw: (item) => (item.seq ? drawMessage(trace, item, this.laneWidth, this.filters.words) : drawTurnHead(item)),
      chosen: (item) => this.pick(item),
      scrolled: () => this.follow(),
    });
    this.turnList = new RowList(byId("turns"), {
      rowHeight: TURN_ROW,
      draw: (turn) => drawTurnEntry(trace, turn),
      chosen: (turn) => this.pickTurn(turn),
    });
    this.table = new RowList(byId("table-turns"), {
      rowHeight: TABLE_ROW,
      draw: drawTableRow,
      chosen: (turn) => this.pickTurn(turn),
    });
    this.fillIn();
    this.listen();
    this.layOut();
    this.orderTurns();
    this.goToAddress();
    new ResizeObserver(() => this.layOut()).observe(byId("centre"));
  }

  fillIn() {
    byId("title").textContent = this.trace.episode.title;
    byId("legend").append(...drawLegend());
    byId("keys").append(...KEYS.flatMap(([key, what]) => [element("dt", {}, key), element("dd", {}, what)]));
    this.sayFacts();
  }

  sayFacts() {
    const { trace } = this;
    const length = trace.turns.reduce((total, turn) => total + turn.length, 0);
    byId("facts").textContent = `${many(trace.turns.filter((turn) => turn.number).length, "turn")} · ${many(trace.overview.messages, "message")} · ${duration(length)} in turns`;
  }

  // --- what is where ---

  layOut() {
    const width = byId("centre").clientWidth;
    const changed = width !== this.width;
    this.width = width;
    this.laneWidth = laneWidth(this.trace, width);
    this.root.style.setProperty("--lanes", `${this.laneWidth * this.trace.actors.length}px`);
    byId("lane-names").replaceChildren(...laneNames(this.trace, this.laneWidth));
    this.overview = drawOverview(this.trace, byId("overview").clientWidth);
    byId("overview").replaceChildren(this.overview.svg);
    this.shownTurn = null;
    if (this.tab === "messages") {
      this.list.forget();
      this.list.redraw();
    }
    if (this.tab === "plot" && changed) this.plot.show();
    this.follow();
  }

  /** Show a tab: the story, the messages, the plot, or the table of the turns. */
  showTab(tab) {
    this.tab = TABS.includes(tab) ? tab : "story";
    this.root.dataset.tab = this.tab;
    for (const each of TABS) {
      const [button, panel] = [byId(`tab-${each}`), byId(each === "messages" ? "messages-pane" : each)];
      button.setAttribute("aria-selected", String(each === this.tab));
      button.tabIndex = each === this.tab ? 0 : -1;
      panel.hidden = each !== this.tab;
    }
    delete this.root.dataset.pane;
    this.shownTurn = null;
    this.applyFilters();
    if (this.tab === "plot") this.plot.show();
  }

  switchTab(tab) {
    const turn = this.shownTurn;
    this.showTab(tab);
    if (tab === "story" && turn?.number && this.story.turn !== turn) this.story.choose(turn, "top");
    if (tab === "messages") this.select(this.selected ?? (turn?.number ? turn : null));
    if (tab === "table" && turn) this.showTurn(turn);
    this.focusTab();
    this.addressSoon();
  }

  focusTab() {
    const places = { story: byId("passages"), messages: byId("messages"), plot: byId("plot").querySelector("svg"), table: byId("table-turns") };
    places[this.tab]?.focus({ preventScroll: true });
  }

  filtersChanged() {
    this.applyFilters();
    this.addressSoon();
  }

  applyFilters() {
    byId("clear").hidden = !this.filters.inUse;
    const [count, all, noun] = this.tab === "messages" ? this.showMessages() : this.tab === "table" ? this.countTurns() : this.showStory();
    this.filterTurns();
    const reading = this.trace.whole ? "" : ", still reading";
    byId("count").textContent = this.filters.inUse && this.tab !== "plot" ? `${count.toLocaleString("en")} of ${many(all, noun)}${reading}` : "";
    byId("nothing").hidden = count > 0 || !this.trace.whole || this.tab === "plot" || !this.filters.inUse;
  }

  showStory() {
    if (this.tab === "story") this.passages = this.updating ? this.story.update(this.updating) : this.story.apply();
    return [this.passages ?? 0, this.trace.passageOf.size, "passage"];
  }

  showMessages() {
    const test = this.filters.test();
    const items = [];
    let count = 0;
    for (const turn of this.trace.turns) {
      const messages = this.filters.inUse ? turn.messages.filter(test) : turn.messages;
      if (messages.length) items.push(turn);
      for (const message of messages) items.push(message);
      count += messages.length;
    }
    this.list.show(items);
    if (!this.updating) {
      if (!this.list.indexOf.has(this.selected)) this.list.box.scrollTop = 0;
      this.list.activate(this.selected, "mid");
    }
    return [count, this.trace.messageOf.size, "message"];
  }

  /** Return the turns in which the filters accept a message (in the tab of the messages) or a passage (elsewhere). */
  turnsShown() {
    const { trace, filters } = this;
    if (!filters.inUse) return trace.turns;
    const test = filters.test();
    const passes = (turn) => turn.passages.some((passage) => trace.messagesOf(passage).some(test));
    return trace.turns.filter(this.tab === "messages" ? (turn) => turn.messages.some(test) : passes);
  }

  countTurns() {
    const numbered = (turns) => turns.filter(({ number }) => number).length;
    return [numbered(this.turnsShown()), numbered(this.trace.turns), "turn"];
  }

  /** In the list of turns, show those that the filters accept. If they are shown already, change nothing. */
  filterTurns() {
    const shown = new Set(this.turnsShown());
    if (shown.size !== this.turnList.items.length || this.turnList.items.some((turn) => !shown.has(turn))) this.orderTurns();
  }

  orderTurns() {
    const orders = {
      turn: () => 0,
      longest: (one, other) => other.length - one.length,
      worst: (one, other) => badness(other) - badness(one),
    };
    const turns = [...this.turnsShown()].sort(orders[byId("order").value]);
    const numbered = turns.filter(({ number }) => number);
    this.turnList.show(turns);
    this.table.show(numbered);
    this.shownTurn = null;
    this.follow();
  }

  /** Show the turn of the selected item, or of the item at the top, in the time line and the list of turns. */
  follow() {
    if (!this.story || !this.turnList || !this.overview) return;
    this.markFound();
    const turn = this.tab === "messages" ? this.turnOfMessages() : this.tab === "story" ? this.story.turn : this.shownTurn;
    if (turn && turn !== this.shownTurn) this.showTurn(turn);
  }

  turnOfMessages() {
    const { items, active, firstVisible } = this.list;
    const item = this.list.shows(active) ? active : items[firstVisible];
    const turn = item && (item.seq ? this.trace.turnOf.get(item.turn) : item);
    // Messages before the first turn have hardly any duration: show the time line of the first turn.
    return turn && !turn.number && !this.selected ? this.trace.turns[1] ?? turn : turn;
  }

  showTurn(turn) {
    this.shownTurn = turn;
    if (this.tab === "messages") {
      byId("time-title").replaceChildren(turn.name, turn.outcome ? badge(turn.outcome, outcomeGrade(turn)) : "", element("span", { class: "summary" }, duration(turn.length)));
      byId("timeline").replaceChildren(drawTimeline(this.trace, turn, byId("timeline").clientWidth));
    }
    this.overview.cursor.setAttribute("x", this.trace.turns.indexOf(turn) * this.overview.step);
    for (const list of [this.turnList, this.table]) list.activate(turn);
  }

  /** Highlight the searched text in the visible part of the page. */
  markFound() {
    if (!CSS.highlights) return;
    const found = new Highlight();
    const words = this.filters.words.slice(0, 1);
    const places = [this.list.space, this.story.list.view, byId("detail-body")];
    if (words.length) for (const range of rangesOf(words, places)) found.add(range);
    CSS.highlights.set("found", found);
  }

  // --- what is selected in the messages ---

  select(item, where = item && !item.seq ? "top" : "mid") {
    this.selected = item;
    if (item && !this.list.indexOf.has(item)) this.filters.clear();
    this.list.activate(item, where);
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

  /** Select an item by key or click, and change the address without a new entry in the browser's history. */
  move(item, where) {
    if (!item) return;
    this.select(item, where);
    this.addressSoon();
  }

  pick(item) {
    this.move(item, "near");
    this.root.dataset.pane = "detail";
  }

  /** Go to a turn that was chosen in the list of turns or in the overview. */
  pickTurn(turn) {
    if (!turn) return;
    if (this.tab === "messages") this.move(turn);
    else this.toStory(turn);
    this.intoList();
  }

  // --- the story ---

  toStory(item) {
    if (!item) return;
    if (this.tab !== "story") {
      this.showTab("story");
      this.focusTab();
    }
    if (!this.story.list.indexOf.has(item)) this.filters.clear();
    this.story.choose(item, "top");
    this.addressSoon();
  }

  /** Go from the active passage to its message, or from the selected message to its passage. */
  toOther() {
    if (this.tab === "messages") {
      if (this.selected?.seq) this.toStory(this.trace.passageAt(this.selected));
    } else if (this.story.list.active?.seq) location.hash = `#${this.story.list.active.seq}`;
  }

  unfold() {
    const unfolded = byId("unfold").getAttribute("aria-pressed") !== "true";
    byId("unfold").setAttribute("aria-pressed", String(unfolded));
    this.story.setUnfolded(unfolded);
  }

  /** Show a request in a dialog, in the form in which it was sent. */
  showRequest(seq) {
    const request = this.trace.messageOf.get(seq);
    if (request?.kind !== "RequestCompletion") return;
    const view = requestView(this.trace, request);
    [this.requested, this.json] = [seq, view.json];
    showDialog(view);
    byId("request-body").querySelector(".badge.good")?.scrollIntoView({ block: "start" });
    this.addressSoon();
  }

  requestOfSelection() {
    if (this.tab === "story") return this.story.request;
    for (let message = this.selected; message?.seq; message = this.trace.messageOf.get(message.cause)) {
      if (message.kind === "RequestCompletion") return message.seq;
    }
    return 0;
  }

  // --- the address ---

  get address() {
    const turn = this.tab === "messages" ? (this.selected && !this.selected.seq ? this.selected.number : null) : this.tab === "story" && this.story.list.active ? this.story.turn?.number : null;
    return writeAddress({
      tab: this.tab,
      message: this.tab === "messages" ? this.selected?.seq : 0,
      turn,
      passage: this.tab === "story" ? this.story.list.active?.id : "",
      request: this.requested,
      plot: this.tab === "plot" ? this.plot.name : "",
      filters: this.filters.state,
    });
  }

  // Change the address a little later: browsers refuse many changes a second, as a held key would make.
  addressSoon() {
    clearTimeout(this.addressing);
    this.awaited = null;
    const { hash } = location;
    // If a link has been followed meanwhile, keep its address: the page shows it at the event `hashchange`.
    this.addressing = setTimeout(() => location.hash === hash && setAddress(this.address), ADDRESS_DELAY_MS);
  }

  /** Show the item that the address names, because a link was followed or the page was opened with an address. */
  goToAddress() {
    clearTimeout(this.addressing);
    const parts = readAddress(location.hash);
    this.awaited = this.isHere(parts) ? null : parts;
    const filtered = this.filters.restore(parts);
    if (parts.tab !== this.tab || filtered || !this.root.dataset.tab) this.showTab(parts.tab);
    const turn = parts.turn === undefined ? null : this.trace.turnOf.get(parts.turn) ?? null;
    if (this.tab === "messages") this.select(this.trace.messageOf.get(parts.message) ?? turn);
    else if (this.tab === "plot") this.plot.show(parts.plot);
    else this.story.choose(this.trace.passageOf.get(parts.passage) ?? turn, "top");
    if (parts.request) this.showRequest(Number(parts.request));
    else if (byId("request").open) byId("request").close();
  }

  /** Return whether the item that an address names is among the messages that have been read. */
  isHere({ tab, message, passage, request, turn }) {
    const { trace } = this;
    if (trace.whole) return true;
    const turnIsHere = tab !== "messages" || !trace.turnOf.has(turn) || trace.turnOf.get(turn).messages.length > 0;
    const passageIsHere = !passage || trace.passageOf.has(passage);
    return tab !== "plot" && turnIsHere && passageIsHere && [message, request].every((seq) => !seq || trace.messageOf.has(Number(seq)));
  }

  copyLink() {
    setAddress(this.address);
    copyText(location.href, byId("copy-link"));
  }

  // --- messages that come later ---

  /** Add new pieces of a growing trace, without moving the part of the page that the reader looks at. */
  extend(pieces) {
    const touched = pieces.flatMap((piece) => this.trace.extend(piece));
    this.filters.fill(this.trace);
    this.sayFacts();
    this.update([CARD, ...touched]);
    this.layOut();
    this.orderTurns();
    this.root.dataset.ready = String(this.trace.messageOf.size);
  }

  /** Show what has been read since the last time. */
  update(touched) {
    this.updating = touched;
    this.applyFilters();
    this.updating = null;
    if (this.awaited && this.isHere(this.awaited)) this.goToAddress();
    else if (this.trace.whole && this.tab === "plot") this.plot.show();
    else if (this.trace.whole && this.tab === "messages" && !this.selected?.seq) this.showDetail();
  }

  /** Read the rest of the page's messages, and from time to time show the new ones. */
  async readRest(pieces) {
    const progress = byId("indexed");
    progress.max = Math.max(this.trace.overview.messages, 1);
    let touched = [];
    let shown = performance.now();
    const whole = this.trace.whole;
    for await (const piece of pieces) {
      for (const item of this.trace.extend(piece)) touched.push(item);
      progress.hidden = this.trace.whole;
      progress.value = this.trace.messageOf.size;
      const now = performance.now();
      if (now - shown < UPDATE_MS && !(this.awaited && this.isHere(this.awaited))) continue;
      this.update(touched);
      touched = [];
      shown = performance.now();
    }
    if (!whole) this.update(touched);
    this.root.dataset.ready = String(this.trace.messageOf.size);
  }

  step(by) {
    if (this.tab === "table") {
      if (this.table.items.length) this.showTurn(this.table.neighbour(by));
      return;
    }
    if (this.tab === "story") {
      this.story.step(by);
      this.addressSoon();
      return;
    }
    this.move(this.list.neighbour(by), "near");
  }

  stepTurn(by) {
    if (this.tab === "table") {
      this.step(by);
      return;
    }
    if (this.tab === "story") {
      this.story.stepTurn(by);
      this.addressSoon();
      return;
    }
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

  get listOfTab() {
    return { messages: byId("messages"), table: byId("table-turns") }[this.tab] ?? byId("passages");
  }

  intoList() {
    delete this.root.dataset.pane;
    byId("turns-button").setAttribute("aria-expanded", "false");
    this.listOfTab.focus({ preventScroll: true });
  }

  backToList() {
    if (this.root.dataset.pane || !this.listOfTab.contains(document.activeElement)) this.intoList();
    else if (this.filters.inUse) this.filters.clear();
  }

  toggleTurns() {
    const open = this.root.dataset.pane !== "turns";
    if (open) this.root.dataset.pane = "turns";
    else delete this.root.dataset.pane;
    byId("turns-button").setAttribute("aria-expanded", String(open));
    if (open) byId("turns").focus();
  }

  toggleExact() {
    this.exact = !this.exact;
    this.showDetail();
  }

  // --- events ---

  listen() {
    const clicks = {
      "turns-button": () => this.toggleTurns(),
      "copy-link": () => this.copyLink(),
      theme: toggleTheme,
      "help-button": () => byId("help").showModal(),
      "help-close": () => byId("help").close(),
      "request-close": () => byId("request").close(),
      "request-copy": () => copyText(this.json, byId("request-copy")),
      unfold: () => this.unfold(),
      clear: () => this.filters.clear(),
      "clear-too": () => this.filters.clear(),
      close: () => this.backToList(),
    };
    for (const [id, act] of Object.entries(clicks)) byId(id).addEventListener("click", act);
    for (const tab of TABS) byId(`tab-${tab}`).addEventListener("click", () => this.switchTab(tab));
    byId("detail-body").addEventListener("click", (event) => event.target.id === "exact" && this.toggleExact());
    document.addEventListener("click", (event) => this.clickOnRequest(event));
    byId("request").addEventListener("close", () => {
      this.requested = 0;
      this.addressSoon();
    });
    byId("order").addEventListener("change", () => {
      this.orderTurns();
      this.table.box.scrollTop = 0;
    });
    this.listenToOverview();
    addEventListener("hashchange", () => this.goToAddress());
    new Keys(this);
  }

  clickOnRequest(event) {
    const asked = event.target.closest?.("[data-request]");
    const within = event.target.closest?.("#request a[href]");
    if (asked) {
      event.preventDefault();
      this.showRequest(Number(asked.dataset.request));
    } else if (within) byId("request").close();
  }

  /** In the overview of all turns, a click goes to a turn, and dragging chooses a range of turns. */
  listenToOverview() {
    const turnAt = (event) => itemAt(this.trace.turns, Math.floor(event.offsetX / this.overview.step));
    let from = null;
    byId("overview").addEventListener("pointerdown", (event) => {
      from = turnAt(event);
    });
    byId("overview").addEventListener("pointerup", (event) => {
      const to = turnAt(event);
      if (from && to && from !== to) {
        const range = [from.number, to.number].sort((one, other) => one - other);
        this.filters.turn.value = range.join("-");
        this.filtersChanged();
      } else this.pickTurn(to);
      from = null;
    });
  }

  stepInTurns(by) {
    const turn = this.turnList.neighbour(by);
    if (this.tab === "messages") this.move(turn);
    else if (this.tab === "table" && turn) this.showTurn(turn);
    else this.toStory(turn);
  }
}

/** Put a text into the clipboard, and say so on the button. */
async function copyText(text, button) {
  const before = button.dataset.text ?? button.textContent;
  button.dataset.text = before;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed here";
  }
  setTimeout(() => {
    button.textContent = before;
  }, 1500);
}

function badness(turn) {
  const failed = turn.outcome && outcomeGrade(turn) === "fail" ? 1e6 : 0;
  const grade = { fail: 1e4, warn: 1e2 }[turn.grade] ?? 0;
  return failed + grade + turn.marks.reduce((total, { count }) => total + count, 0);
}

/** Draw a turn's entry in the list of turns: how it ended, what went wrong, and where its time went. */
function drawTurnEntry(trace, turn) {
  const phases = element("span", { class: "phases" }, ...phasePieces(turn));
  phases.style.width = `${Math.max((turn.length / trace.longest) * 100, 1)}%`;
  const marks = turn.marks.map((mark) => badge(markName(mark), mark.grade));
  const isPair = turn.question && turn.answer && !turn.action;
  const said = isPair ? [turn.question, ` → ${turn.answer}`] : [turn.said || turn.outcome || turn.name];
  return element(
    "div",
    { class: `row turn-entry ${turn.grade}`, title: turnFacts(turn) },
    element("span", { class: "turn-line" },
      element("b", {}, turn.number ? String(turn.number) : "–"),
      marks.length
        ? element("span", { class: "marks" }, ...marks)
        : element("span", { class: "summary" }, ...said.map((text) => element("span", {}, text))),
      element("span", { class: "took" }, duration(turn.length))),
    element("span", { class: "track" }, phases),
  );
}

/** Draw a turn's row in the table of the turns. */
function drawTableRow(turn) {
  const answer = turn.answer || turn.reason;
  const texts = [turn.question, answer].map((text) => element("span", { title: text }, text));
  return element("div", { class: `row table-row ${turn.grade}`, title: turnFacts(turn) },
    element("b", {}, String(turn.number)), ...texts,
    element("span", {}, turn.outcome ? badge(turn.outcome, outcomeGrade(turn)) : ""),
    element("span", {}, String(turn.tool_calls)), element("span", { class: "took" }, duration(turn.length)));
}
