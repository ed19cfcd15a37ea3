// The story: the episode's card, then each turn with its passages. Only the visible part of the list is drawn.

const CARD = { card: true };
const GUESSED_HEIGHTS = { fact: 90, prompt: 80, reply: 120, call: 40, note: 36, end: 44 };

class Story {
  constructor(trace, filters, { moved = () => {}, box = byId("passages") } = {}) {
    Object.assign(this, { trace, filters, unfolded: false, words: [], moved });
    this.list = new FlowList(box, {
      draw: (item) => this.draw(item),
      estimate: (item) => (item.card ? 260 : item.number === undefined ? GUESSED_HEIGHTS[item.kind] : 48),
      chosen: (item) => this.choose(item, "stay"),
      scrolled: () => this.moved(),
    });
  }

  draw(item) {
    if (item.card) return drawCard(this.trace);
    if (item.number !== undefined) return drawStoryTurn(this.trace, item);
    return drawPassage(this.trace, item, this);
  }

  /** Show the passages that the filters accept; return how many they accept. */
  apply() {
    const { items, count } = this.filtered();
    this.list.show(items);
    return count;
  }

  filtered() {
    const { trace, filters } = this;
    const test = filters.test();
    this.words = filters.words;
    const items = filters.inUse ? [] : [CARD];
    let count = 0;
    for (const turn of trace.turns) {
      const passages = filters.inUse ? turn.passages.filter((passage) => trace.messagesOf(passage).some(test)) : turn.passages;
      if (passages.length || (!filters.inUse && turn.number)) items.push(turn, ...passages);
      count += passages.length;
    }
    return { items, count };
  }

  /** Show new passages; return how many are shown. A reader at the end of a growing trace stays at its end. */
  update(touched) {
    const { box } = this.list;
    const atEnd = this.trace.episode.live && box.scrollTop + box.clientHeight > box.scrollHeight - 40;
    const { items, count } = this.filtered();
    this.list.change(items, new Set(touched));
    if (atEnd) this.toEnd();
    return count;
  }

  toEnd() {
    const last = this.list.items.length - 1;
    if (last >= 0) this.list.redraw({ index: last, below: this.list.tops[last + 1] - this.list.tops[last] - this.list.box.clientHeight });
  }

  setUnfolded(unfolded) {
    this.unfolded = unfolded;
    for (const passage of this.trace.passageOf.values()) passage.open = null;
    this.list.heights.clear();
    this.list.show(this.list.items);
  }

  /** Make a passage, a turn or the card the active one. */
  choose(item, where = "near") {
    if (!this.list.indexOf.has(item)) return;
    this.list.activate(item, where);
    this.moved();
  }

  step(by) {
    const { items, active, indexOf } = this.list;
    const at = indexOf.get(active) ?? (by > 0 ? this.list.firstVisible - 1 : this.list.firstVisible + 1);
    this.choose(itemAt(items, at + by));
  }

  stepTurn(by) {
    const turns = this.list.items.filter((item) => item.number !== undefined);
    const atCard = this.list.items[this.list.firstVisible]?.card && !this.list.active?.at;
    const at = atCard && by > 0 && this.list.active?.number === undefined ? turns.findIndex(({ number }) => number) - 1 : turns.indexOf(this.turn);
    const within = by < 0 && this.list.active !== this.turn && this.list.active?.at === this.turn;
    this.choose(itemAt(turns, within ? at : at + by), "top");
  }

  /** The turn of the active passage if this passage is in view, otherwise the turn of the passage at the top. */
  get turn() {
    const { items, active, firstVisible } = this.list;
    const item = this.list.shows(active) ? active : items[firstVisible];
    if (!item || item.card) return this.trace.turns.find((turn) => turn.number) ?? this.trace.turns[0];
    return item.number === undefined ? item.at : item;
  }

  /** Open all outermost folds of the active passage, or close them if all are open. */
  toggle() {
    const folds = [...(this.list.activeElement?.querySelectorAll("details") ?? [])].filter((one) => !one.parentElement.closest("details"));
    const open = folds.some((one) => !one.open);
    for (const one of folds) one.open = open;
  }

  /** The number of the turn's latest request up to the active passage; 0: there is none. */
  get request() {
    const active = this.list.active;
    if (!active?.at) return 0;
    const before = active.at.passages.slice(0, active.at.passages.indexOf(active) + 1);
    return before.findLast((passage) => passage.kind === "reply")?.seq ?? 0;
  }
}
