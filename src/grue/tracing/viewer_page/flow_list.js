// A list of many items of different heights, of which only those near the visible ones are in the page.
// An item's height is estimated until it has been drawn. The item at the top stays where it is while others
// change their heights, so the text does not jump under the reader's eyes.

const MARGIN = 500;
const MOST_PRINTED = 3000;

class FlowList {
  /**
   * box: the scrolling element. draw: makes an item's element. estimate: an item's height before it is drawn,
   * in pixels. chosen: called with an item that was clicked. scrolled: called after each redraw.
   */
  constructor(box, { draw, estimate, chosen = () => {}, scrolled = () => {} }) {
    Object.assign(this, { box, draw, estimate, scrolled, items: [], active: null, drawn: new Map(), heights: new Map(), indexOf: new Map() });
    this.space = box.appendChild(element("div", { class: "flow-space" }));
    this.view = this.space.appendChild(element("div", { class: "flow-view" }));
    this.width = box.clientWidth;
    this.observer = new ResizeObserver(() => this.redraw());
    new ResizeObserver(() => this.resized()).observe(box);
    addEventListener("beforeprint", () => this.printing());
    addEventListener("afterprint", () => {
      this.onPaper = false;
      this.redraw();
    });
    box.addEventListener("scroll", () => this.soon(), { passive: true });
    this.view.addEventListener("click", (event) => {
      const made = event.target.closest("[data-index]");
      if (made) chosen(this.items[Number(made.dataset.index)], event);
    });
  }

  soon() {
    this.waiting ??= requestAnimationFrame(() => {
      this.waiting = null;
      this.redraw();
    });
  }

  show(items) {
    this.items = items;
    this.indexOf = new Map(items.map((item, index) => [item, index]));
    this.forget();
    this.place();
    this.redraw();
  }

  /** Show other items. The item at the top keeps its place, and items that stay are drawn anew only if outdated. */
  change(items, outdated = new Set()) {
    const pinned = this.items[this.items.length ? this.firstVisible : -1];
    const below = pinned ? this.box.scrollTop - this.tops[this.indexOf.get(pinned)] : 0;
    const drawn = [...this.drawn].map(([index, made]) => [this.items[index], made]);
    this.items = items;
    this.indexOf = new Map(items.map((item, index) => [item, index]));
    this.drawn = new Map();
    for (const [item, made] of drawn) {
      const index = this.indexOf.get(item);
      if (index === undefined || outdated.has(item)) this.remove(made);
      else this.drawn.set(index, this.numbered(made, index));
    }
    for (const item of outdated) this.heights.delete(item);
    this.place();
    this.redraw(this.indexOf.has(pinned) ? { index: this.indexOf.get(pinned), below } : null);
  }

  /** Drop the drawn form of every item, so that it is drawn anew. */
  forget() {
    for (const made of this.drawn.values()) this.remove(made);
    this.drawn.clear();
  }

  remove(made) {
    this.observer.unobserve(made);
    made.remove();
  }

  resized() {
    let pinned = null;
    if (this.box.clientWidth !== this.width) {
      if (this.items.length) pinned = { index: this.firstVisible, below: this.box.scrollTop - this.tops[this.firstVisible] };
      this.width = this.box.clientWidth;
      this.heights.clear();
      this.place();
    }
    this.redraw(pinned);
  }

  /** Draw the items for a printer: all of them, but at most MOST_PRINTED. */
  printing() {
    if (!this.items.length || !this.box.clientHeight) return;
    this.onPaper = true;
    this.fill(0, Math.min(this.items.length, MOST_PRINTED) - 1);
  }

  /** Compute where each item begins. */
  place() {
    const { items, heights } = this;
    this.tops = new Float64Array(items.length + 1);
    for (let index = 0; index < items.length; index += 1) {
      this.tops[index + 1] = this.tops[index] + (heights.get(items[index]) ?? this.estimate(items[index]));
    }
    this.space.style.height = `${this.tops[items.length]}px`;
  }

  /** Return the index of the item at the height `top`. */
  at(top) {
    let [low, high] = [0, this.items.length - 1];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.tops[middle] <= top) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  get firstVisible() {
    return this.at(this.box.scrollTop + 1);
  }

  get hidden() {
    return !this.box.clientHeight;
  }

  /** Return whether a part of an item is in view. */
  shows(item) {
    const { scrollTop, clientHeight } = this.box;
    const index = this.indexOf.get(item);
    return index !== undefined && this.tops[index + 1] > scrollTop && this.tops[index] < scrollTop + clientHeight;
  }

  /** Return the item so many places after the active one, but at most the last, or at least the first. */
  neighbour(by) {
    return itemAt(this.items, (this.indexOf.get(this.active) ?? (by > 0 ? -1 : this.items.length)) + by);
  }

  redraw(pinned = null) {
    const { box } = this;
    if (this.onPaper) return;
    if (!this.items.length || this.hidden) {
      this.forget();
      return;
    }
    const pin = pinned?.index ?? this.firstVisible;
    const below = pinned?.below ?? box.scrollTop - this.tops[pin];
    for (let round = 0; round < 4; round += 1) {
      const top = Math.max(0, this.tops[pin] + below);
      this.fill(this.at(top - MARGIN), this.at(top + box.clientHeight + MARGIN));
      const settled = !this.measure();
      const wanted = Math.max(0, this.tops[pin] + below);
      if (Math.abs(box.scrollTop - wanted) > 0.5) box.scrollTop = wanted;
      if (settled) break;
    }
    this.scrolled();
  }

  fill(first, last) {
    for (const [index, made] of [...this.drawn]) {
      if (index >= first && index <= last) continue;
      this.remove(made);
      this.drawn.delete(index);
    }
    let before = null;
    for (let index = last; index >= first; index -= 1) {
      let made = this.drawn.get(index);
      if (!made) {
        made = this.make(index);
        this.view.insertBefore(made, before);
        this.observer.observe(made);
        this.drawn.set(index, made);
      }
      before = made;
    }
    this.first = first;
    this.view.style.transform = `translateY(${this.tops[first]}px)`;
  }

  make(index) {
    const made = this.draw(this.items[index]);
    made.tabIndex = -1;
    this.numbered(made, index);
    this.mark(made, this.items[index] === this.active);
    return made;
  }

  mark(made, active) {
    if (active) made.setAttribute("aria-current", "true");
    else made.removeAttribute("aria-current");
  }

  numbered(made, index) {
    made.dataset.index = index;
    made.setAttribute("aria-posinset", index + 1);
    made.setAttribute("aria-setsize", this.items.length);
    return made;
  }

  /** Measure the drawn items; return whether one has another height than was known or estimated. */
  measure() {
    let changed = false;
    for (const [index, made] of this.drawn) {
      const item = this.items[index];
      const height = made.getBoundingClientRect().height;
      if (Math.abs((this.heights.get(item) ?? this.estimate(item)) - height) < 0.5) continue;
      this.heights.set(item, height);
      changed = true;
    }
    if (changed) {
      this.place();
      this.view.style.transform = `translateY(${this.tops[this.first]}px)`;
    }
    return changed;
  }

  /**
   * Make an item the active one and scroll to it: to the top (`top`), no further than needed (`near`), so that it
   * is in the upper part if it was out of view (`mid`), or not (`stay`).
   */
  activate(item, where = "near") {
    const before = this.drawn.get(this.indexOf.get(this.active));
    if (before) this.mark(before, false);
    this.active = item;
    const index = this.indexOf.get(item);
    if (index === undefined) return;
    const { scrollTop, clientHeight } = this.box;
    const [top, bottom] = [this.tops[index], this.tops[index + 1]];
    if (where === "stay") this.redraw();
    else if (where === "top") this.redraw({ index, below: 0 });
    else if (where === "mid" && (top < scrollTop || bottom > scrollTop + clientHeight)) this.redraw({ index, below: -clientHeight / 3 });
    else if (top < scrollTop || bottom - top > clientHeight) this.redraw({ index, below: -12 });
    else if (bottom > scrollTop + clientHeight) this.redraw({ index, below: bottom - top - clientHeight + 12 });
    else this.redraw();
    const made = this.drawn.get(index);
    if (made) this.mark(made, true);
  }

  get activeElement() {
    return this.drawn.get(this.indexOf.get(this.active)) ?? null;
  }
}
