// The trace. Its turns are known from the beginning, unless it still grows. Its messages come in pieces, are
// linked to each other once, and are grouped by turn, in the order in which the turns began.

const UNDRAWN_PHASES = new Set(["turn", "session"]);

class Trace {
  constructor(episode) {
    this.episode = episode;
    this.turns = [];
    this.turnOf = new Map();
    this.messageOf = new Map();
    this.passageOf = new Map();
    this.cutOf = new Map(); // by turn and call: the result that the model was sent a part of
    this.kinds = new Set(episode.kinds);
    this.describe(episode);
  }

  /** True if all messages have been read; always true for a growing trace, whose messages come from the server. */
  get whole() {
    return this.episode.live || this.messageOf.size >= this.overview.messages;
  }

  /** Store turns, and replace the actors and the overview. Return the turns that were given, as stored. */
  describe({ turns, actors, overview }) {
    this.overview = overview;
    this.actors = actors;
    this.lanes = new Map(actors.map((actor, lane) => [actor, lane]));
    const touched = turns.map((digest) => this.addTurn(digest));
    this.longest = this.turns.reduce((most, turn) => Math.max(most, turn.length), 1e-9);
    return touched;
  }

  /** Add a piece; return what is new or has changed. A piece of a growing trace also has its turns and overview. */
  extend(piece) {
    const turns = piece.turns ? this.describe(piece) : [];
    for (const row of piece.messages) this.addMessage(newMessage(row));
    for (const row of piece.spans) this.addSpan(newSpan(row));
    return [...turns, ...piece.story.map((row) => this.addPassage(row))];
  }

  addTurn(digest) {
    const known = this.turnOf.get(digest.turn);
    if (known) return Object.assign(known, digestOf(digest));
    const turn = { ...digestOf(digest), messages: [], spans: [], unmarked: [], passages: [] };
    this.turns.push(turn);
    this.turnOf.set(turn.number, turn);
    return turn;
  }

  /** Add a passage; if an earlier version of the passage is known, update that version instead. */
  addPassage(row) {
    const made = newPassage(row);
    const known = this.passageOf.get(made.id);
    if (known) return Object.assign(known, { also: made.also, text: made.text });
    made.at = this.turnOf.get(made.turn);
    made.at.passages.push(made);
    this.passageOf.set(made.id, made);
    return made;
  }

  /** Return those messages of a passage that have been read. */
  messagesOf(passage) {
    return [passage.seq, ...passage.also].map((seq) => this.messageOf.get(seq)).filter(Boolean);
  }

  /** Return the passage that a message belongs to; if it is in no passage, the passage before the message. */
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
    this.kinds.add(message.kind);
    if (message.kind === "RequestCompletion" && message.mark) this.addCuts(message);
    const cause = this.messageOf.get(message.cause);
    cause?.effects.push(message);
  }

  addCuts(request) {
    for (const item of bodyOf(request)?.new ?? []) if (item.whole_chars) this.cutOf.set(`${request.turn} ${item.call_id}`, item);
  }

  addSpan(span) {
    const first = this.messageOf.get(span.first);
    const last = this.messageOf.get(span.last);
    const turn = this.turnOf.get(first.turn);
    if (span.grade) span.mark = last.mark || "cut off";
    turn.spans.push(span);
    if (last.turn === first.turn && last !== first) last.ends.push(span);
    turn.unmarked.push([span, first, last]);
  }
}

function newMessage(row) {
  const [seq, t, at, turn, sender, receiver, cause, kind, summary, mark, grade, batch, redacted, chars, body, repeats = "", broken = "", leftOut = 0] = row;
  return {
    seq, t, at, turn, sender, receiver, cause, kind, summary, mark, grade, batch, redacted, chars, body, repeats, broken, leftOut,
    effects: [], ends: [], activity: [], place: 0, haystack: null,
  };
}

function newSpan(row) {
  const [turn, lane, phase, label, start, end, first, last, grade] = row;
  return { turn, lane, phase, label, start, end, first, last, grade, mark: "" };
}

function digestOf({ turn: number, start_s: start, end_s: end, took_s: length, phases, marks, ...rest }) {
  const said = rest.action || [rest.question, rest.answer].filter(Boolean).join(" → ");
  const name = number ? `Turn ${number}${rest.forked ? ", forked" : ""}` : "Before the first turn";
  return { ...rest, name, said, number, start, end, length, marks, phases: Object.entries(phases), grade: marks[0]?.grade ?? "" };
}

function newPassage(row) {
  const [turn, kind, seq, place, also, depth, text] = row;
  return { turn, kind, seq, place, also, depth, text, id: place < 0 ? String(seq) : `${seq}.${place}`, open: null };
}

/** Return the spans that are open while a message is sent, for the bars in the lanes. Computed when first shown. */
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
    turn.messages[place].activity.push({ lane: span.lane, phase: span.phase, starts: place === first, ends: place === last });
  }
}

/** Return the `most` longest spans of single steps, the longest first. */
function longestSpans(spans, most) {
  const pieces = spans.filter((span) => !UNDRAWN_PHASES.has(span.phase));
  return pieces.sort((one, other) => other.end - other.start - (one.end - one.start)).slice(0, most);
}

/** Return whether a message answers the message that caused it. */
function isAnswer(trace, message) {
  const cause = trace.messageOf.get(message.cause);
  return Boolean(cause) && cause.sender === message.receiver && cause.receiver === message.sender;
}
