// The trace: parsed once, linked once. Messages are grouped by turn, in the order in which the turns began.

const NONE = Object.freeze([]);
const NONE_OPEN = new Map(); // shared by the passages in which the reader has opened nothing
const UNDRAWN_PHASES = new Set(["turn", "session"]);

class Trace {
  constructor(rows, episode) {
    this.episode = episode;
    this.turns = [];
    this.turnOf = new Map();
    this.messageOf = new Map();
    this.passageOf = new Map();
    this.extend({ ...episode, messages: rows });
  }

  /** Add a piece of a trace: what a page begins with, or what is new in a trace that is under way. */
  extend({ messages, turns, spans, story, actors, overview }) {
    this.overview = overview;
    this.actors = actors;
    this.lanes = new Map(actors.map((actor, lane) => [actor, lane]));
    const touched = turns.map((digest) => this.addTurn(digest));
    for (const row of messages) this.addMessage(newMessage(row));
    for (const row of spans) touched.push(this.addSpan(newSpan(row)));
    const passages = story.map((row) => this.addPassage(row));
    for (const turn of new Set(touched)) finishTurn(turn);
    this.messages = this.turns.flatMap((turn) => turn.messages);
    this.longest = this.turns.reduce((most, turn) => Math.max(most, turn.length), 1e-9);
    return { turns: new Set(touched), passages };
  }

  addTurn(digest) {
    const known = this.turnOf.get(digest.turn);
    if (known) return Object.assign(known, digestOf(digest));
    const turn = newTurn(digest);
    this.turns.push(turn);
    this.turnOf.set(turn.number, turn);
    return turn;
  }

  /** Add a passage, or put what has changed into the one that is there. */
  addPassage(row) {
    const made = newPassage(row);
    const known = this.passageOf.get(made.id);
    if (known) return Object.assign(known, { also: made.also, text: made.text });
    made.at = this.turnOf.get(made.turn);
    made.at.passages.push(made);
    this.passageOf.set(made.id, made);
    return made;
  }

  /** Return the messages of a passage that are in the page. */
  messagesOf(passage) {
    return [passage.seq, ...passage.also].map((seq) => this.messageOf.get(seq)).filter(Boolean);
  }

  /** Return the passage that a message belongs to; otherwise the one before it. */
  passageAt(message) {
    let best = null;
    for (const passage of this.turnOf.get(message.turn)?.passages ?? []) {
      if (passage.seq === message.seq || passage.also.includes(message.seq)) return passage;
      if (passage.seq < message.seq) best = passage;
    }
    return best;
  }

  addMessage(message) {
    const turn = this.turnOf.get(message.turn);
    message.place = turn.messages.length;
    turn.messages.push(message);
    this.messageOf.set(message.seq, message);
    const cause = this.messageOf.get(message.cause);
    if (cause) cause.effects = added(cause.effects, message);
  }

  addSpan(span) {
    const first = this.messageOf.get(span.first);
    const last = this.messageOf.get(span.last);
    const turn = this.turnOf.get(first.turn);
    if (span.grade) span.mark = last.mark || "cut off";
    turn.spans.push(span);
    if (last.turn === first.turn && last !== first) last.ends = added(last.ends, span);
    turn.unmarked.push([span, first, last]);
    return turn;
  }
}

function newMessage(row) {
  const [seq, t, at, turn, sender, receiver, cause, kind, summary, mark, grade, batch, redacted, chars, body] = row;
  return {
    seq, t, at, turn, sender, receiver, cause, kind, summary, mark, grade, batch, redacted, chars, body,
    effects: NONE, ends: NONE, activity: NONE, place: 0, haystack: null,
  };
}

function newSpan(row) {
  const [turn, lane, phase, label, start, end, first, last, grade] = row;
  return { turn, lane, phase, label, start, end, first, last, grade, mark: "" };
}

function newTurn(digest) {
  return {
    ...digestOf(digest), messages: [], spans: [], unmarked: [], passages: [], marks: [], phases: [], length: 0, grade: "",
    name: digest.turn ? `Turn ${digest.turn}` : "Before the first turn",
  };
}

function digestOf({ turn: number, start_s: start, end_s: end, ...rest }) {
  return { ...rest, number, start, end };
}

function newPassage(row) {
  const [turn, kind, seq, place, also, depth, text] = row;
  return { turn, kind, seq, place, also, depth, text, id: place < 0 ? String(seq) : `${seq}.${place}`, open: NONE_OPEN };
}

/** Return a list with one more; most lists of a message stay empty, and share one. */
function added(list, item) {
  if (list === NONE) return [item];
  list.push(item);
  return list;
}

/** Return what goes on while a message is sent, for the bars in the lanes. It is found turn by turn, when shown. */
function activityOf(turn, message) {
  for (const [span, first, last] of turn.unmarked) {
    markActivity(turn, span, first.place, last.turn === first.turn ? last.place : turn.messages.length - 1);
  }
  turn.unmarked = [];
  return message.activity;
}

function markActivity(turn, span, first, last) {
  if (span.phase === "wait" || span.phase === "host") return;
  for (let place = first; place <= last; place += 1) {
    const message = turn.messages[place];
    message.activity = added(message.activity, {
      lane: span.lane, phase: span.phase, starts: place === first, ends: place === last,
    });
  }
}

function finishTurn(turn) {
  const whole = turn.spans.find((span) => span.phase === "turn");
  turn.length = whole ? whole.end - whole.start : turn.end - turn.start;
  turn.end = turn.spans.reduce((end, span) => Math.max(end, span.end), turn.end);
  const sums = new Map();
  for (const span of turn.spans) {
    if (UNDRAWN_PHASES.has(span.phase) || span.phase === "host") continue;
    sums.set(span.phase, (sums.get(span.phase) ?? 0) + span.end - span.start);
  }
  turn.phases = [...sums];
  turn.marks = countMarks(turn.messages);
  turn.grade = turn.marks[0]?.grade ?? "";
}

/** Return how often each mark comes up in messages, the bad ones first. */
function countMarks(messages) {
  const counts = new Map();
  for (const { mark: word, grade } of messages) {
    if (!word) continue;
    if (!counts.has(word)) counts.set(word, { word, grade, count: 0 });
    counts.get(word).count += 1;
  }
  return [...counts.values()].sort((one, other) => (one.grade === "warn") - (other.grade === "warn"));
}

/** Return the pieces of time that people look for, longest first. */
function longestSpans(spans, most) {
  const pieces = spans.filter((span) => !UNDRAWN_PHASES.has(span.phase));
  return pieces.sort((one, other) => other.end - other.start - (one.end - one.start)).slice(0, most);
}

/** Is this message the answer to the one that caused it? */
function isAnswer(trace, message) {
  const cause = trace.messageOf.get(message.cause);
  return Boolean(cause) && cause.sender === message.receiver && cause.receiver === message.sender;
}
