// What each key does: its name, what the help says, and the action of a key that does the same everywhere.

const KEYS = [
  ["1  2  3  4", "story, messages, plot, table of the turns"],
  ["j  ↓", "next passage, next message", (viewer) => viewer.step(1)],
  ["k  ↑", "previous passage, previous message", (viewer) => viewer.step(-1)],
  ["PgDn  PgUp", "a page on, a page back"],
  ["Home  End", "first, last message; top and end of the story"],
  ["n", "next turn", (viewer) => viewer.stepTurn(1)],
  ["p", "previous turn", (viewer) => viewer.stepTurn(-1)],
  ["Enter", "open what is folded; in messages: into the details"],
  ["o", "open everything, close everything", (viewer) => viewer.tab === "story" && viewer.unfold()],
  ["r", "the request as it was sent", (viewer) => viewer.showRequest(viewer.requestOfSelection())],
  ["m", "to the passage's message; from a message to its passage", (viewer) => viewer.toOther()],
  ["c", "to the message's cause", (viewer) => viewer.toCause()],
  ["Esc", "back to the list; then clear the filters"],
  ["/", "search", (viewer) => viewer.filters.search.select()],
  ["f", "failures only", (viewer) => viewer.filters.toggleFailures()],
  ["x", "exact JSON", (viewer) => viewer.toggleExact()],
  ["y", "copy the address of what is shown", (viewer) => viewer.copyLink()],
  ["?", "this help", () => byId("help").showModal()],
];

class Keys {
  constructor(viewer) {
    this.viewer = viewer;
    byId("tabs").addEventListener("keydown", (event) => this.keyInTabs(event));
    document.addEventListener("keydown", (event) => this.keyDown(event));
  }

  keyInTabs(event) {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    event.preventDefault();
    const next = TABS[(TABS.indexOf(this.viewer.tab) + by + TABS.length) % TABS.length];
    this.viewer.switchTab(next);
    byId(`tab-${next}`).focus();
  }

  keyDown(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || ["help", "request", "mark"].some((id) => byId(id).open)) return;
    const actions = event.target.matches("input, select") ? { Enter: () => this.viewer.focusTab() } : this.keyActions(event);
    const action = event.key === "Escape" ? () => this.viewer.backToList() : actions[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  }

  keyActions(event) {
    const anywhere = {
      ...Object.fromEntries(TABS.map((tab, at) => [at + 1, () => this.viewer.switchTab(tab)])),
      ...Object.fromEntries(KEYS.filter(([, , act]) => act).map(([name, , act]) => [name[0], () => act(this.viewer)])),
    };
    const inTurns = { ArrowDown: () => this.viewer.stepInTurns(1), ArrowUp: () => this.viewer.stepInTurns(-1), Enter: () => this.viewer.backToList() };
    if (byId("turns").contains(event.target)) return { ...anywhere, ...inTurns };
    const elsewhere = event.target.closest("button, a, summary, svg, #detail");
    return elsewhere ? anywhere : { ...anywhere, ...this.keysOfTab() };
  }

  keysOfTab() {
    const { viewer } = this;
    const steps = { ArrowDown: 1, ArrowUp: -1, Home: -Infinity, End: Infinity };
    const moves = Object.fromEntries(Object.entries(steps).map(([key, by]) => [key, () => viewer.step(by)]));
    if (viewer.tab === "story") {
      const { box } = viewer.story.list;
      const scroll = (pages) => box.scrollBy({ top: pages * (box.clientHeight - 60), behavior: "instant" });
      return { ...moves, PageDown: () => scroll(1), PageUp: () => scroll(-1), " ": () => scroll(1), Enter: () => viewer.story.toggle() };
    }
    const [box, height, enter] = viewer.tab === "table"
      ? [byId("table-turns"), TABLE_ROW, () => viewer.pickTurn(viewer.table.active)]
      : [byId("messages"), ROW_HEIGHT, () => viewer.intoDetail()];
    const page = Math.max(1, Math.floor(box.clientHeight / height) - 1);
    return { ...moves, PageDown: () => viewer.step(page), PageUp: () => viewer.step(-page), Enter: enter };
  }
}
