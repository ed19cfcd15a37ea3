// A listbox of rows of one height, of which one is selected: the active one.

class RowList extends FlowList {
  /** rowHeight: pixels; the other arguments are those of FlowList. */
  constructor(box, { rowHeight, ...others }) {
    super(box, { estimate: () => rowHeight, ...others });
    for (const part of [this.space, this.view]) part.setAttribute("role", "presentation");
  }

  get hidden() {
    return false; // rows are not measured, so they can be drawn at any time
  }

  measure() {
    return false;
  }

  make(index) {
    const row = super.make(index);
    row.removeAttribute("tabindex"); // a click leaves the focus to the box
    row.setAttribute("role", "option");
    return row;
  }

  numbered(row, index) {
    row.id = `${this.box.id}-${index}`;
    return super.numbered(row, index);
  }

  mark(row, active) {
    row.setAttribute("aria-selected", String(active));
    if (active) this.box.setAttribute("aria-activedescendant", row.id);
  }

  activate(item, where) {
    this.box.removeAttribute("aria-activedescendant");
    super.activate(item, where);
  }
}
