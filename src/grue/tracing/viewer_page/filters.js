// The filters: a message is shown if all filters that are in use accept it.

class Filters {
  constructor(trace, changed) {
    this.search = byId("search");
    this.turn = byId("turn-filter");
    this.actor = byId("actor-filter");
    this.kind = byId("kind-filter");
    this.failures = byId("failures");
    this.fields = [this.search, this.turn, this.actor, this.kind];
    this.fill(trace);
    for (const field of this.fields) field.addEventListener("input", changed);
    this.failures.addEventListener("click", () => this.toggleFailures());
    this.changed = changed;
  }

  /** Offer the actors and kinds that the trace has; keep the reader's choice. */
  fill(trace) {
    fillSelect(this.actor, trace.actors);
    fillSelect(this.kind, [...trace.kinds].sort());
  }

  /** The searched text, in each form in which a message can contain it. */
  get words() {
    return searchForms(this.search.value);
  }

  /** The values of the filters, in the form in which the address holds them. */
  get state() {
    return {
      q: this.search.value.trim(), turns: this.turn.value.trim(), actor: this.actor.value, kind: this.kind.value,
      failures: this.failuresOnly ? "1" : "",
    };
  }

  /** Set the filters to the values in an address, without a call of `changed`; return whether a value has changed. */
  restore({ q = "", turns = "", actor = "", kind = "", failures = "" }) {
    const before = JSON.stringify(this.state);
    [this.search.value, this.turn.value, this.actor.value, this.kind.value] = [q, turns, actor, kind];
    for (const select of [this.actor, this.kind]) if (select.selectedIndex < 0) select.value = "";
    this.failures.setAttribute("aria-pressed", String(failures === "1"));
    return JSON.stringify(this.state) !== before;
  }

  get failuresOnly() {
    return this.failures.getAttribute("aria-pressed") === "true";
  }

  get inUse() {
    return this.failuresOnly || this.fields.some((field) => field.value.trim() !== "");
  }

  toggleFailures() {
    this.failures.setAttribute("aria-pressed", String(!this.failuresOnly));
    this.changed();
  }

  clear() {
    for (const field of this.fields) field.value = "";
    this.failures.setAttribute("aria-pressed", "false");
    this.changed();
  }

  /** Return a function that returns whether a message is shown. */
  test() {
    const turns = turnRange(this.turn.value);
    this.turn.setAttribute("aria-invalid", String(turns === null));
    const words = searchForms(this.search.value);
    const [actor, kind, failuresOnly] = [this.actor.value, this.kind.value, this.failuresOnly];
    return (message) =>
      (!failuresOnly || message.grade !== "") &&
      (turns === null || (message.turn >= turns[0] && message.turn <= turns[1])) &&
      (!actor || message.sender === actor || message.receiver === actor) &&
      (!kind || message.kind === kind) &&
      (!words.length || words.some((word) => haystack(message).includes(word)));
  }
}

function fillSelect(select, values) {
  const known = new Set([...select.options].map(({ value }) => value));
  select.append(...values.filter((value) => !known.has(value)).map((value) => element("option", { value }, value)));
}

/** Return the first and the last turn of `3`, `5-8`, `5-` or nothing; null if it is none of these. */
function turnRange(text) {
  if (!text.trim()) return [0, Infinity];
  const found = /^\s*(\d+)\s*(?:([-–])\s*(\d*)\s*)?$/.exec(text);
  if (!found) return null;
  const [, first, open, last] = found;
  return [Number(first), open ? (last ? Number(last) : Infinity) : Number(first)];
}

/** Return the forms of a text that a message can contain: the text itself, and the text as a JSON string. */
function searchForms(text) {
  const plain = text.trim().toLowerCase();
  return plain ? [...new Set([plain, JSON.stringify(plain).slice(1, -1)])] : [];
}

function haystack(message) {
  message.haystack ??= `#${message.seq} ${message.kind} ${message.mark} ${message.summary}\n${message.body}`.toLowerCase();
  return message.haystack;
}
