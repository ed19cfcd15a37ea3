// Time to scale: the spans of one turn, and all turns of the episode.

const BAR_ROW = 20;
const AXIS = 18;
const NAMES = { most: 96, share: 0.2 };
const LETTER = 6.2;
const PHASES = {
  model: "model",
  wait: "retry wait",
  tool: "tool call",
  startup: "start-up",
  teardown: "teardown",
  host: "host",
};

function drawLegend() {
  return Object.entries(PHASES).map(([phase, name]) =>
    element("span", { class: "legend-entry" }, element("i", { class: `swatch ${phase}` }), name));
}

/** Draw the time line of a turn, so many pixels wide. Each bar is a link to the message that began it. */
function drawTimeline(trace, turn, width) {
  const lanes = trace.actors.filter((actor) => turn.spans.some((span) => span.lane === actor && span.phase !== "turn"));
  const left = Math.min(NAMES.most, Math.floor(width * NAMES.share));
  const scale = { start: turn.start, left, perSecond: (width - left - 12) / Math.max(turn.end - turn.start, 1e-6) };
  const height = AXIS + Math.max(lanes.length, 1) * BAR_ROW;
  const svg = shape("svg", { width, height, role: "group", "aria-label": `Time line of ${turn.name}` });
  svg.append(hatching(), ...drawAxis(turn, scale, height));
  lanes.forEach((lane, row) => {
    const top = AXIS + row * BAR_ROW;
    svg.append(shape("text", { class: "time-lane", x: 8, y: top + 14 }, cutText(lane, left - 12)));
    svg.append(...drawSpans(turn.spans.filter((span) => span.lane === lane), scale, top));
  });
  return svg;
}

/** Return the pattern that hatches bars of waits, in which no work was done. */
function hatching() {
  const lines = shape("path", { class: "hatch", d: "M-1 1l2 -2M0 6l6 -6M5 7l2 -2" });
  return shape("defs", {}, shape("pattern", { id: "hatching", width: 6, height: 6, patternUnits: "userSpaceOnUse" }, lines));
}

function drawAxis(turn, { left, perSecond }, height) {
  const total = turn.end - turn.start;
  const step = niceStep(total, (total * perSecond) / 90);
  const marks = [];
  for (let at = 0; at <= total + step * 1e-6; at += step) {
    const x = left + at * perSecond;
    marks.push(shape("path", { class: "tick", d: `M${x} ${AXIS - 5}V${height}` }));
    // Do not write a time near the right edge: the text would not fit into the picture.
    if (total - at > 0.5 * step || at === 0) {
      marks.push(shape("text", { class: "tick-name", x: x + 3, y: AXIS - 6 }, at === 0 ? "0" : duration(at)));
    }
  }
  return marks;
}

/** Return a step (1, 2 or 5 times a power of ten) that divides a length of time into about `steps` parts. */
function niceStep(total, steps) {
  const rough = Math.max(total, 1e-6) / Math.max(steps, 1);
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
}

function drawSpans(spans, scale, top) {
  const bars = [];
  let drawnTo = -1;
  // Draw sessions first, so that they lie below the steps in them; then the steps that went well, so that failed
  // steps lie on top.
  const rank = (span) => (span.phase === "session" ? 0 : span.grade ? 2 : 1);
  for (const span of [...spans].sort((one, other) => rank(one) - rank(other) || one.start - other.start)) {
    const x = scale.left + (span.start - scale.start) * scale.perSecond;
    const wide = Math.max((span.end - span.start) * scale.perSecond, 2);
    // Draw only one of several bars in the same half pixel, but draw each bar of a failure.
    if (rank(span) === 1 && x + wide < drawnTo + 0.5) continue;
    if (rank(span) === 1) drawnTo = Math.max(drawnTo, x + wide);
    bars.push(drawSpan(span, x, wide, top));
  }
  return bars;
}

function drawSpan(span, x, wide, top) {
  if (span.phase === "turn") return "";
  if (span.phase === "session") return shape("rect", { class: "alive", x, y: top + 16, width: wide, height: 2 });
  const told = `${PHASES[span.phase]}: ${span.label}, ${duration(span.end - span.start)}${span.mark ? `, ${span.mark}` : ""}`;
  const bar = shape("rect", { class: `bar-of-time ${span.phase} ${span.grade}`, x, y: top + 2, width: wide, height: BAR_ROW - 6, rx: Math.min(2, wide / 4) });
  const link = shape("a", { href: `#${span.first}`, "aria-label": told }, shape("title", {}, told), bar);
  const name = cutText(span.mark ? `${span.label} · ${span.mark}` : span.label, wide - 8);
  if (name) link.append(shape("text", { class: "bar-name", x: x + 4, y: top + 13 }, name));
  return link;
}

function cutText(text, pixels) {
  const most = Math.floor(pixels / LETTER);
  if (text.length <= most) return text;
  return most > 3 ? `${text.slice(0, most - 1)}…` : "";
}

/** Draw all turns: for each a bar with its duration, and below the bar a mark if something went wrong. */
function drawOverview(trace, width) {
  const height = 40;
  const paths = { long: "", warn: "", fail: "" };
  const step = width / Math.max(trace.turns.length, 1);
  const wide = Math.max(step - (step > 4 ? 1 : 0), 0.7);
  trace.turns.forEach((turn, index) => {
    const x = index * step;
    const tall = Math.max((turn.length / trace.longest) * (height - 12), 1.5);
    paths.long += `M${x} ${height - 8}v${-tall}h${wide}v${tall}z`;
    if (turn.grade) paths[turn.grade] += `M${x} ${height - 6}h${Math.max(wide, 1.5)}v6h${-Math.max(wide, 1.5)}z`;
  });
  const cursor = shape("rect", { class: "cursor", y: 0, height, width: Math.max(step, 3) });
  const bars = Object.entries(paths).map(([name, d]) => shape("path", { class: `overview-${name}`, d }));
  return { svg: shape("svg", { width, height }, cursor, ...bars), cursor, step };
}
