// The pane beside the list: a message, a turn, or the whole episode.

const MOST_LISTED = 60;
const LONGEST_LISTED = 8;

const link = (href, ...children) => element("a", { href }, ...children);
const messageLink = (message) => link(`#${message.seq}`, `#${message.seq} ${message.kind}`);
const turnLink = (turn) => link(`#turn-${turn.number}`, turn.name);

/** Return a line of a list: a link, a badge if there is a mark, and a text. */
function line(anchor, mark, grade, text) {
  return element("li", {}, anchor, mark ? badge(mark, grade) : null, element("span", { class: "summary" }, text));
}

function section(name, lines) {
  if (!lines.length) return [];
  const more = lines.length - MOST_LISTED;
  const shown = lines.slice(0, MOST_LISTED).map((make) => make());
  if (more > 0) shown.push(element("li", {}, `and ${more.toLocaleString("en")} more: press f to see them all`));
  return [element("h3", {}, name), element("ul", { class: "lines" }, ...shown)];
}

function facts(pairs) {
  const rows = pairs.filter(([, value]) => value !== "" && value !== null);
  return element("dl", { class: "facts" }, ...rows.flatMap(([name, value]) => [
    element("dt", {}, name),
    element("dd", {}, value),
  ]));
}

const clock = (at) => isoTime(at).replace("T", " ").replace("Z", " UTC");

/** Return the heading and the contents for a message. */
function messageDetail(trace, message, exact) {
  const turn = trace.turnOf.get(message.turn);
  const cause = trace.messageOf.get(message.cause);
  const took = message.ends.filter((span) => span.phase !== "turn" && span.phase !== "session");
  const way = message.receiver ? `${message.sender} → ${message.receiver}` : `${message.sender}, noted`;
  const contents = [
    message.mark ? element("p", { class: `told ${message.grade}` }, badge(message.mark, message.grade), ` ${message.summary}`) : null,
    facts([
      ["from → to", way],
      ["turn", turnLink(turn)],
      ["time", `+${duration(message.t - turn.start)}, ${clock(message.at)}`],
      ["took", took.map((span) => `${duration(span.end - span.start)} (${PHASES[span.phase]}: ${span.label})`).join(", ")],
      ["batch", message.batch === null ? "" : String(message.batch)],
      ["cause", cause ? messageLink(cause) : message.cause === null ? "" : `#${message.cause}`],
    ]),
    ...section("Effects", message.effects.map((effect) => () => line(messageLink(effect), effect.mark, effect.grade, `after ${duration(effect.t - message.t)}`))),
    ...drawBody(trace, message, exact),
  ];
  return { title: `#${message.seq} ${message.kind}`, contents };
}

function drawBody(trace, message, exact) {
  const mode = element("button", { type: "button", id: "exact", "aria-pressed": String(exact), title: "Strings exactly as written (x)" }, "Exact JSON");
  const notes = [];
  if (message.redacted) notes.push(element("p", { class: "note" }, "A secret was removed from this message before it was recorded."));
  if (message.body.length < message.chars) {
    const shown = message.body.length.toLocaleString("en");
    const whole = message.chars.toLocaleString("en");
    notes.push(element("p", { class: "note" }, `Cut: ${shown} of ${whole} characters are here; the whole is message ${message.seq} of ${trace.episode.file}.`));
  }
  return [element("div", { class: "bar" }, element("h3", {}, "Message"), mode), ...notes, drawJson(message.body, exact)];
}

/** Return the heading and the contents for a turn. */
function turnDetail(trace, turn) {
  const wrong = turn.messages.filter((message) => message.grade);
  const { input_tokens: sent = 0, output_tokens: got = 0, cost_usd: cost = null } = turn.usage;
  const contents = [
    facts([
      ["outcome", turn.outcome ? badge(turn.outcome, outcomeGrade(turn)) : ""],
      ["because", turn.reason],
      ["action", turn.action],
      ["question", turn.question],
      ["answer", turn.answer],
      ["took", duration(turn.length)],
      ["model", turn.number ? `${many(turn.requests, "request")}, ${many(sent, "token")} in, ${many(got, "token")} out${cost === null ? "" : `, ${cost} USD`}` : ""],
      ["tool calls", turn.tool_calls ? String(turn.tool_calls) : ""],
      ["messages", String(turn.messages.length)],
    ]),
    ...section("What went wrong", wrong.map((message) => () => line(messageLink(message), message.mark, message.grade, message.summary))),
    ...section("What took longest", longestSpans(turn.spans, LONGEST_LISTED).map((span) => () => spanLine(span, ""))),
  ];
  return { title: turn.name, contents };
}

function spanLine(span, where) {
  const what = `${PHASES[span.phase]}: ${span.lane}, ${span.label}${where}`;
  return element("li", {}, link(`#${span.first}`, duration(span.end - span.start)), element("span", { class: "summary" }, what));
}

/** Return the heading and the contents for the episode, which the pane shows first. */
function episodeDetail(trace) {
  const { header, file, cut_short: cutShort } = trace.episode;
  const wrong = trace.turns.filter((turn) => turn.grade || outcomeGrade(turn) === "fail" && turn.outcome);
  const longest = [...trace.turns].sort((one, other) => other.length - one.length).slice(0, LONGEST_LISTED);
  const spans = trace.turns.flatMap((turn) => turn.spans).filter((span) => span.phase !== "host");
  const contents = [
    cutShort ? element("p", { class: "note" }, "The last line of the file was cut short: it is being written, or its writer was killed.") : null,
    facts([
      ["episode", header.episode],
      ["started", clock(header.started_at)],
      ["turns", outcomes(trace)],
      ["messages", trace.overview.messages.toLocaleString("en")],
      ["file", file],
    ]),
    ...section("Turns in which something went wrong", wrong.map((turn) => () => turnLine(turn, turn.marks.map(markName).join(", ")))),
    ...section("Longest turns", longest.map((turn) => () => turnLine(turn, duration(turn.length)))),
    ...section("What took longest", longestSpans(spans, LONGEST_LISTED).map((span) => () => spanLine(span, `, turn ${span.turn}`))),
  ];
  return { title: "Episode", contents };
}

function turnLine(turn, text) {
  return line(turnLink(turn), turn.outcome, outcomeGrade(turn), text);
}

function markName({ word, count }) {
  return count > 1 ? `${word} ×${count}` : word;
}

function outcomes(trace) {
  const ended = Map.groupBy(trace.turns.filter(({ outcome }) => outcome), ({ outcome }) => outcome);
  return [...ended].map(([outcome, turns]) => `${turns.length} ${outcome}`).join(", ");
}
