// A list of many rows of one height, of which only the visible ones are in the page.

const SPARE_ROWS = 8;

class VirtualList {
  /**
   * box: the scrolling listbox. rowHeight: pixels. draw: makes a row's element from its item.
   * picked: called with an item that was clicked. scrolled: called after each redraw.
   */
  constructor(box, { rowHeight, draw, picked, scrolled = () => {} }) {
    Object.assign(this, { box, rowHeight, draw, scrolled, items: [], active: -1, drawn: new Map() });
    this.space = box.appendChild(element("div", { class: "space", role: "presentation" }));
    this.redraw = this.redraw.bind(this);
    box.addEventListener("scroll", () => requestAnimationFrame(this.redraw), { passive: true });
    box.addEventListener("click", (event) => {
      const row = event.target.closest("[role=option]");
      if (row) picked(this.items[Number(row.dataset.index)]);
    });
    new ResizeObserver(this.redraw).observe(box);
  }

  show(items, active = -1) {
    this.items = items;
    this.active = active;
    this.space.style.height = `${items.length * this.rowHeight}px`;
    this.forget();
    this.redraw();
  }

  /** Draw every visible row anew at the next redraw. */
  forget() {
    for (const row of this.drawn.values()) row.remove();
    this.drawn.clear();
  }

  get firstVisible() {
    return Math.min(Math.floor(this.box.scrollTop / this.rowHeight), Math.max(0, this.items.length - 1));
  }

  get lastVisible() {
    return Math.min(Math.ceil((this.box.scrollTop + this.box.clientHeight) / this.rowHeight) - 1, this.items.length - 1);
  }

  redraw() {
    const first = Math.max(0, this.firstVisible - SPARE_ROWS);
    const last = Math.min(this.items.length - 1, this.lastVisible + SPARE_ROWS);
    for (const [index, row] of this.drawn) {
      if (index >= first && index <= last) continue;
      row.remove();
      this.drawn.delete(index);
    }
    for (let index = first; index <= last; index += 1) {
      if (!this.drawn.has(index)) this.drawn.set(index, this.space.appendChild(this.row(index)));
    }
    this.scrolled();
  }

  row(index) {
    const row = this.draw(this.items[index], index);
    row.id = `${this.box.id}-${index}`;
    row.dataset.index = index;
    row.setAttribute("role", "option");
    row.setAttribute("aria-posinset", index + 1);
    row.setAttribute("aria-setsize", this.items.length);
    row.setAttribute("aria-selected", String(index === this.active));
    row.style.transform = `translateY(${index * this.rowHeight}px)`;
    return row;
  }

  /** Make a row the active one (below 0: none). Scroll it to the `top`; `near`, `mid`: only if it is out of view. */
  activate(index, where = "near") {
    this.drawn.get(this.active)?.setAttribute("aria-selected", "false");
    this.active = index;
    if (index < 0) {
      this.box.removeAttribute("aria-activedescendant");
      return;
    }
    this.reveal(index, where);
    this.redraw();
    this.drawn.get(index)?.setAttribute("aria-selected", "true");
    this.box.setAttribute("aria-activedescendant", `${this.box.id}-${index}`);
  }

  reveal(index, where) {
    const top = index * this.rowHeight;
    const { scrollTop, clientHeight } = this.box;
    if (where === "top") this.box.scrollTop = top;
    else if (top >= scrollTop && top + this.rowHeight <= scrollTop + clientHeight) return;
    else if (where === "mid") this.box.scrollTop = top - clientHeight / 3;
    else this.box.scrollTop = top < scrollTop ? top : top + this.rowHeight - clientHeight;
  }
}
