// The head of the episode and of each turn, in the story.

const MOST_PROBLEMS = 8;

/** Draw the card that opens the story: what the episode was, how it ended, what it cost, where the time went. */
function drawCard(trace) {
  const { overview, episode } = trace;
  const wrong = trace.turns.filter((turn) => turn.grade);
  const words = wrong.some((turn) => turn.grade === "fail") ? "Something went wrong in " : "Look at ";
  return element("article", { class: "card", "aria-label": "The episode" },
    element("h2", {}, visible(overview.title || episode.header.episode),
      overview.ending ? badge(overview.ending, overview.grade || "good") : null,
      overview.result ? element("span", { class: "score" }, overview.result) : null),
    overview.detail ? element("p", { class: "summary" }, overview.detail) : null,
    cardFacts(trace),
    drawTimeByKind(trace),
    wrong.length ? element("p", { class: "problems" }, words, ...wrong.slice(0, MOST_PROBLEMS).flatMap((turn) => [turnLink(turn), " "]),
      wrong.length > MOST_PROBLEMS ? `and ${many(wrong.length - MOST_PROBLEMS, "more turn")}; press f` : null) : null);
}

function cardFacts(trace) {
  const { overview, episode } = trace;
  const usage = overview.usage;
  const count = (number, what) => (number ? `${number.toLocaleString("en")} ${what}` : "");
  const models = Object.entries(overview.models).map(([name, replies]) => (replies ? `${name} (${many(replies, "reply").replace("replys", "replies")})` : name));
  const tokens = [`${(usage.input_tokens ?? 0).toLocaleString("en")} in`, count(usage.cached_tokens, "of them cached"), `${(usage.output_tokens ?? 0).toLocaleString("en")} out`, count(usage.reasoning_tokens, "of them thoughts")].filter(Boolean).join(", ");
  const fields = Object.entries({ ...overview.facts, ...overview.results });
  return facts([
    ["model", models.join(", ") + (overview.scripted ? " (scripted)" : "")],
    ["model asked", Object.entries(overview.asked).map(([name, address]) => (address ? `${name} at ${address}` : name)).join(", ")],
    ["tools", overview.servers.join(", ")],
    ["forks", overview.forks.join("; ")],
    ["turns", [many(overview.forks.length ? trace.turns.filter(({ number }) => number).length : overview.turns, "turn"), outcomes(trace), overview.resumed ? `resumed ${overview.resumed} ×` : ""].filter(Boolean).join(": ")],
    ["asked", `${many(overview.requests, "request")}, ${many(overview.tool_calls, "tool call")}`],
    ["tokens", tokens],
    ["cost", usage.cost_usd === undefined || usage.cost_usd === null ? "" : `${Number(usage.cost_usd.toPrecision(6))} USD`],
    ["images", episode.images ? element("a", { href: "#q=grue-image" }, `show ${many(episode.images, "image")}`) : ""],
    ["started", clock(episode.header.started_at)],
    ...fields.map(([name, value]) => [name.replace(/_/g, " "), brieflyField(value)]),
  ]);
}

const brieflyField = (value) => visible(String(value).length > SHORT_FIELD ? `${String(value).slice(0, SHORT_FIELD)}…` : String(value));

/** Draw where the time of all turns went. */
function drawTimeByKind(trace) {
  const sums = new Map();
  for (const turn of trace.turns) for (const [phase, seconds] of turn.phases) sums.set(phase, (sums.get(phase) ?? 0) + seconds);
  const total = [...sums.values()].reduce((sum, seconds) => sum + seconds, 0);
  if (!total) return null;
  const order = Object.keys(PHASES).filter((phase) => sums.has(phase));
  const bar = element("span", { class: "phases whole" }, ...order.map((phase) => {
    const piece = element("i", { class: phase });
    piece.style.width = `${(sums.get(phase) / total) * 100}%`;
    return piece;
  }));
  const legend = order.map((phase) => element("span", { class: "legend-entry" }, element("i", { class: `swatch ${phase}` }), `${PHASES[phase]} ${duration(sums.get(phase))}`));
  return element("div", { class: "time-by-kind" }, bar, element("p", { class: "summary" }, ...legend));
}

/** Draw the line that heads a turn in the story. */
function drawStoryTurn(trace, turn) {
  const phases = element("span", { class: "phases" }, ...phasePieces(turn));
  return element("article", { class: `story-turn ${turn.grade}`, "aria-label": turn.name },
    element("h3", {}, element("a", { href: `#turn-${turn.number}` }, turn.name)),
    turn.outcome ? badge(turn.outcome, outcomeGrade(turn)) : null,
    ...turn.marks.filter(({ word }) => word !== turn.outcome).slice(0, 4).map((mark) => badge(markName(mark), mark.grade)),
    element("span", { class: "summary" }, storyFacts(turn)),
    turn.phases.length ? phases : null);
}

function storyFacts(turn) {
  const { input_tokens: sent = 0, output_tokens: got = 0, cost_usd: cost = null } = turn.usage;
  if (!turn.number) return duration(turn.length);
  const parts = [duration(turn.length), many(turn.requests, "request"), many(turn.tool_calls, "tool call")];
  if (sent + got) parts.push(`${sent.toLocaleString("en")} → ${got.toLocaleString("en")} tokens`);
  if (cost !== null) parts.push(`${cost} USD`);
  return parts.join(" · ");
}

function phasePieces(turn) {
  const spent = turn.phases.reduce((total, [, seconds]) => total + seconds, 0);
  const whole = Math.max(spent, turn.length, 1e-9);
  return turn.phases.map(([phase, seconds]) => {
    const piece = element("i", { class: phase, title: `${PHASES[phase]}: ${duration(seconds)}` });
    piece.style.width = `${(seconds / whole) * 100}%`;
    return piece;
  });
}
