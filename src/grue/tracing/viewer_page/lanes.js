// The sequence diagram: one row a message, one lane an actor, the arrow from sender to receiver.

const ROW_HEIGHT = 26;
const MIDDLE = ROW_HEIGHT / 2;
const LANE_WIDTHS = { least: 20, most: 84, share: 0.33 };

/** Return the width of a lane. `pixels` is the width of lanes and texts together. */
function laneWidth(trace, pixels) {
  const wanted = (pixels * LANE_WIDTHS.share) / trace.actors.length;
  return Math.max(LANE_WIDTHS.least, Math.min(LANE_WIDTHS.most, Math.floor(wanted)));
}

/** Return the kind of an actor. The kind decides the colour of the actor's lane and bars. */
function laneKind(actor) {
  return { host: "host", agent: "agent", llm: "model" }[actor] ?? "tool";
}

/** Return the names above the lanes. */
function laneNames(trace, width) {
  return trace.actors.map((actor, lane) => {
    const name = element("span", { class: `lane-name ${laneKind(actor)}`, title: actor }, actor);
    name.style.left = `${lane * width}px`;
    name.style.width = `${width}px`;
    return name;
  });
}

/** Draw one message's part of the diagram. */
function drawLanes(trace, message, width) {
  const middle = (actor) => ((trace.lanes.get(actor) ?? 0) + 0.5) * width;
  const svg = shape("svg", { class: "lanes", "aria-hidden": "true", height: ROW_HEIGHT });
  svg.setAttribute("width", trace.actors.length * width);
  svg.append(shape("path", { class: "lifelines", d: trace.actors.map((actor) => `M${middle(actor)} 0v${ROW_HEIGHT}`).join("") }));
  if (message.batch !== null) svg.append(drawBatch(trace, message, middle));
  for (const activity of activityOf(trace.turnOf.get(message.turn), message)) svg.append(drawActivity(activity, middle(activity.lane)));
  const line = arrowClass(trace, message);
  if (!message.receiver) svg.append(drawNote(middle(message.sender), line));
  else if (message.receiver === message.sender) svg.append(drawLoop(middle(message.sender), line));
  else svg.append(...drawArrow(middle(message.sender), middle(message.receiver), line));
  return svg;
}

function arrowClass(trace, message) {
  const other = trace.lanes.get(message.sender) > trace.lanes.get(message.receiver) ? message.sender : message.receiver;
  const kind = laneKind(other || message.sender);
  return `${kind} ${message.grade} ${isAnswer(trace, message) ? "answer" : ""}`;
}

/** Draw the band of a batch of calls behind its messages, from the agent's lane to the server's. */
function drawBatch(trace, message, middle) {
  const ends = [middle("agent"), middle(message.sender === "agent" ? message.receiver || "agent" : message.sender)];
  const left = Math.min(...ends) - 7;
  return shape("rect", { class: "batch", x: left, y: 0, width: Math.abs(ends[0] - ends[1]) + 14, height: ROW_HEIGHT });
}

function drawActivity({ phase, lane, starts, ends }, x) {
  const top = starts ? MIDDLE : 0;
  const height = (ends ? MIDDLE : ROW_HEIGHT) - top;
  const wide = phase === "session" || phase === "turn" ? 3 : 8;
  const kind = phase === "startup" || phase === "teardown" ? phase : laneKind(lane);
  return shape("rect", { class: `activity ${phase} ${kind}`, x: x - wide / 2, y: top, width: wide, height: Math.max(height, 2) });
}

function drawNote(x, line) {
  return shape("path", { class: `note ${line}`, d: `M${x} ${MIDDLE - 5}l5 5l-5 5l-5 -5z` });
}

function drawLoop(x, line) {
  return shape("path", { class: `arrow ${line}`, d: `M${x + 4} ${MIDDLE - 5}h9v10h-9m4 -3l-4 3l4 3` });
}

function drawArrow(from, to, line) {
  const step = Math.sign(to - from);
  const tip = to - step * 4;
  const d = `M${tip} ${MIDDLE}l${-step * 7} -4v8z`;
  return [
    shape("circle", { class: `dot ${line}`, cx: from, cy: MIDDLE, r: 2.5 }),
    shape("path", { class: `arrow ${line}`, d: `M${from} ${MIDDLE}H${tip - step * 6}` }),
    shape("path", { class: `head ${line}`, d }),
  ];
}

/** Draw a message as a row of the list. */
function drawMessage(trace, message, width, words = []) {
  const start = trace.turnOf.get(message.turn).start;
  const way = message.receiver ? `${message.sender} to ${message.receiver}` : `${message.sender} notes`;
  const offset = message.t - start;
  return element(
    "div",
    { class: `row message ${message.grade}`, "aria-label": `${message.seq} ${message.kind} ${message.mark}, ${way}: ${message.summary}` },
    element("span", { class: "seq" }, String(message.seq)),
    element("span", { class: "time" }, offset > 0 ? `+${duration(offset)}` : "0"),
    drawLanes(trace, message, width),
    element(
      "span",
      { class: "text" },
      element("b", {}, message.kind),
      message.mark ? badge(message.mark, message.grade) : null,
      drawMatch(message, words) ?? element("span", { class: "summary" }, message.summary),
    ),
  );
}

/** Draw the row above the messages of a turn. */
function drawTurnHead(turn) {
  return element(
    "div",
    { class: `row turn-head ${turn.grade}` },
    element("b", {}, turn.name),
    turn.outcome ? badge(turn.outcome, outcomeGrade(turn)) : null,
    element("span", { class: "summary" }, turnFacts(turn)),
  );
}

function outcomeGrade(turn) {
  if (turn.outcome === "answered") return "good";
  return turn.outcome === "failed" || turn.outcome === "unfinished" ? "fail" : "warn";
}

function turnFacts(turn) {
  const facts = [duration(turn.length)];
  if (turn.number) facts.push(many(turn.requests, "request"), many(turn.tool_calls, "tool call"));
  if (turn.said) facts.push(`“${turn.said}”`);
  if (turn.reason) facts.push(turn.reason);
  return facts.join(" · ");
}
