// The trace: parsed once, linked once. Messages are grouped by turn, in the order in which the turns began.

const UNDRAWN_PHASES = new Set(["turn", "session"]);

class Trace {
  constructor(rows, episode) {
    this.episode = episode;
    this.actors = episode.actors;
    this.lanes = new Map(episode.actors.map((actor, lane) => [actor, lane]));
    this.turns = episode.turns.map(newTurn);
    this.turnOf = new Map(this.turns.map((turn) => [turn.number, turn]));
    this.messageOf = new Map();
    for (const row of rows) this.addMessage(newMessage(row));
    for (const row of episode.spans) this.addSpan(newSpan(row));
    for (const turn of this.turns) finishTurn(turn);
    this.messages = this.turns.flatMap((turn) => turn.messages);
    this.longest = this.turns.reduce((most, turn) => Math.max(most, turn.length), 1e-9);
  }

  addMessage(message) {
    const turn = this.turnOf.get(message.turn);
    message.place = turn.messages.length;
    turn.messages.push(message);
    this.messageOf.set(message.seq, message);
    this.messageOf.get(message.cause)?.effects.push(message);
  }

  addSpan(span) {
    const first = this.messageOf.get(span.first);
    const last = this.messageOf.get(span.last);
    const turn = this.turnOf.get(first.turn);
    if (span.grade) span.mark = last.mark || "cut off";
    turn.spans.push(span);
    if (last.turn === first.turn && last !== first) last.ends.push(span);
    markActivity(turn, span, first.place, last.turn === first.turn ? last.place : turn.messages.length - 1);
  }
}

function newMessage(row) {
  const [seq, t, at, turn, sender, receiver, cause, kind, summary, mark, grade, batch, redacted, chars, body] = row;
  return {
    seq, t, at, turn, sender, receiver, cause, kind, summary, mark, grade, batch, redacted, chars, body,
    effects: [], ends: [], activity: [], place: 0, haystack: null,
  };
}

function newSpan(row) {
  const [turn, lane, phase, label, start, end, first, last, grade] = row;
  return { turn, lane, phase, label, start, end, first, last, grade, mark: "" };
}

function newTurn(digest) {
  const { turn: number, start_s: start, end_s: end, ...rest } = digest;
  return {
    ...rest, number, start, end, messages: [], spans: [], marks: [], phases: [], length: 0, grade: "",
    name: number ? `Turn ${number}` : "Before the first turn",
  };
}

/** Say of each message of a span that its actor is at it: the lanes show that as a bar. */
function markActivity(turn, span, first, last) {
  if (span.phase === "wait" || span.phase === "host") return;
  for (let place = first; place <= last; place += 1) {
    turn.messages[place].activity.push({
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
