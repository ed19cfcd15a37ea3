// The passages of the story. A passage names messages by their numbers, and is drawn from these messages.

const SHORT_FIELD = 60;
const BRIEF = 110;
const PROSE_FIELDS = new Set(["text", "message", "content", "body", "reasoning", "reason", "detail", "question", "answer"]);
const NOT_SHOWN = new Set(["type", "turn"]);
const EPISODE_FACT = /^Episode(Started|Resumed|Ended)$/;

/** Draw a passage. If `state` is unfolded or has searched words, folds that the reader has left alone are open. */
function drawPassage(trace, passage, state) {
  const message = trace.messageOf.get(passage.seq);
  const made = element("article", { class: `passage ${passage.kind} depth-${passage.depth}`, "aria-label": `${PASSAGE_NAMES[passage.kind]}, message ${passage.seq}` });
  if (!message) return made;
  const parts = DRAW_PASSAGE[passage.kind]({ trace, passage, message, state });
  made.append(...parts.filter(Boolean));
  const matches = state.words.length ? trace.messagesOf(passage).map((one) => drawMatch(one, state.words)) : [];
  made.append(...matches.filter(Boolean));
  return made;
}

const PASSAGE_NAMES = { fact: "The host records", prompt: "The host asks", reply: "The model", call: "Tool call", note: "Note", end: "End of the turn" };

const DRAW_PASSAGE = { fact: drawFact, prompt: drawPrompt, reply: drawReply, call: drawCall, note: drawNoted, end: drawEnd };

/** Draw the first line of a passage: its name, a few facts, and a link to its message. */
function headLine(passage, name, chips = [], ...more) {
  return element("p", { class: "passage-head" },
    element("b", {}, visible(name)),
    ...chips.filter((text) => text !== "" && text !== null).map(chip),
    ...more,
    element("a", { class: "to-message", href: `#${passage.seq}`, title: "Show the message" }, `#${passage.seq}`));
}

const chip = (text) => (text instanceof Node ? text : element("span", { class: "chip" }, visible(String(text))));

/** Draw a part of a passage that opens and closes. It keeps the state in which the reader has left it. */
function fold({ passage, state }, name, summary, contents, open = false, kind = "") {
  const wanted = passage.open?.get(name) ?? (open || state.unfolded || state.words.length > 0);
  return lazyFold(summary, contents, { open: wanted, kind, changed: (now) => {
    passage.open ??= new Map();
    passage.open.set(name, now);
  } });
}

// --- the host ---

function drawFact({ trace, passage, message, state }) {
  const body = bodyOf(message);
  if (!body) return [headLine(passage, message.kind), cutNote(trace, message)];
  const fields = Object.entries(body).filter(([name, value]) => !NOT_SHOWN.has(name) && isSaid(value));
  if (EPISODE_FACT.test(message.kind)) {
    return [headLine(passage, factName(message.kind)), fold({ passage, state }, "fields", [message.summary], () => [drawTree(Object.fromEntries(fields), 0)])];
  }
  const isShort = ([name, value]) => !(typeof value === "string" && PROSE_FIELDS.has(name)) && isBrief(value);
  const headline = passage.text;
  const shorts = fields.filter(isShort).filter(([, value]) => value !== headline);
  const longs = fields.filter((field) => !isShort(field) && field[1] !== headline);
  return [
    headLine(passage, factName(message.kind), shorts.map(([name, value]) => drawField(name, value))),
    headline ? element("p", { class: "headline" }, visible(headline)) : null,
    ...longs.map(([name, value]) => element("div", { class: "said" }, longs.length > 1 || headline ? element("h4", {}, visible(name)) : null, drawValue(value))),
  ];
}

const isSaid = (value) => value !== null && value !== "" && value !== false && !(typeof value === "object" && !Object.keys(value).length);

/** Return whether a value is short enough for one line: a number, a word, or a few words in a list. */
function isBrief(value) {
  if (Array.isArray(value)) return value.every((one) => typeof one !== "object" || one === null) && value.join(", ").length <= 2 * SHORT_FIELD;
  return typeof value !== "object" && String(value).length <= SHORT_FIELD && !String(value).includes("\n");
}

function drawField(name, value) {
  const text = value === true ? "yes" : Array.isArray(value) ? value.join(", ") : String(value);
  return element("span", { class: "chip" }, element("i", {}, visible(name)), " ", visible(text));
}

/** Return a fact's name in words: `maildesk.MailAssigned` is `Mail assigned`. */
function factName(kind) {
  const words = kind.split(".").pop().replace(/([a-z0-9])([A-Z])/g, "$1 $2").toLowerCase();
  return words.charAt(0).toUpperCase() + words.slice(1);
}

function drawPrompt({ trace, passage, message, state }) {
  const body = bodyOf(message);
  if (!body) return [headLine(passage, "The host asks"), cutNote(trace, message)];
  const history = body.history?.length ? `continues ${body.history.conversation}, ${many(body.history.length, "entry").replace("entrys", "entries")} before` : "";
  const servers = body.servers?.length ? `tools from ${body.servers.join(", ")}` : "no tools";
  const resumed = passage.text === "resumed" ? "the turn goes on" : "";
  const contents = () => [drawProse(body.user), ...drawAttachments(body.images)];
  const shown = passage.text === "shown";
  return [
    headLine(passage, "The host asks", [servers, history, resumed]),
    shown ? fold({ passage, state }, "user", ["The whole prompt", sized(body.user)], contents) : element("div", { class: "said" }, ...contents()),
    body.system ? fold({ passage, state }, "system", ["Instructions", sized(body.system)], () => [drawProse(body.system)]) : null,
    body.answer ? fold({ passage, state }, "schema", ["Answer schema", element("span", { class: "summary" }, visible(body.answer.name))], () => [drawTree(body.answer.schema, 0)]) : null,
  ];
}

const sized = (text) => element("span", { class: "summary" }, many(text.length, "character"));

function drawAttachments(attachments = []) {
  return attachments.map(({ data, mime, name = "", bytes }) => {
    const image = IMAGE.exec(data);
    if (image) return drawImage(image[1], name || "An image for the model");
    return element("p", { class: "summary" }, visible(`${name || "A file"}: ${mime}, ${bytes.toLocaleString("en")} bytes`));
  });
}

function cutNote(trace, message) {
  return element("div", {}, element("p", { class: "note" }, `Only ${message.body.length.toLocaleString("en")} of ${message.chars.toLocaleString("en")} characters are in this page; the whole is message ${message.seq} of ${trace.episode.file}.`), drawProse(message.body));
}

// --- the model ---

function drawReply({ trace, passage, message, state }) {
  const reply = trace.messageOf.get(passage.also[0]) ?? (message.kind === "RequestCompletion" ? null : message);
  const body = bodyOf(reply);
  const pieces = message.effects.filter(({ kind }) => kind === "TextDelta");
  const model = visible(body?.model || body?.failure?.model || (passage.depth ? "The model, for a server" : "The model"));
  const head = headLine(passage, model, replyChips(message, reply, body), message.kind === "RequestCompletion" ? requestButton(passage) : null);
  if (!reply) return [head, ...drawUnfinished(pieces)];
  if (reply.kind === "CompletionFailed") return [head, element("p", { class: "told fail" }, badge(reply.mark || "no reply", "fail"), ` ${reply.summary}`)];
  if (!body) return [head, cutNote(trace, reply)];
  const calls = body.tool_calls?.length ?? 0;
  const nothing = !body.content && !body.refusal && !calls;
  return [
    head,
    reply.broken ? element("p", { class: "told warn" }, badge("cache", "warn"), ` ${visible(reply.broken)}`) : null,
    body.reasoning ? element("div", { class: "thought" }, drawMarkdown(body.reasoning)) : null,
    body.content ? element("div", { class: "said" }, jsonIn(body.content) === undefined ? drawMarkdown(body.content) : drawValue(body.content)) : null,
    body.refusal ? element("p", { class: "told warn" }, badge("declines", "warn"), ` ${visible(body.refusal)}`) : null,
    nothing ? element("p", { class: "told warn" }, badge("empty", "warn"), " It said nothing.") : null,
    pieces.length ? fold({ passage, state }, "streamed", streamSummary(message, pieces), () => drawAttempts(pieces)) : null,
  ];
}

function replyChips(request, reply, body) {
  if (!reply) return [];
  const usage = body?.usage ?? {};
  const cost = usage.cost_usd === undefined || usage.cost_usd === null ? "" : `${usage.cost_usd} USD`;
  const tokens = body && !body.failure ? `${(usage.input_tokens ?? 0).toLocaleString("en")} → ${(usage.output_tokens ?? 0).toLocaleString("en")} tokens` : "";
  const ended = body?.finish_reason === "length" || body?.finish_reason === "content_filter" ? body.finish_reason : "";
  return [body?.failure?.endpoint ?? "", duration(reply.t - request.t), tokens, reply.repeats, cost, ended];
}

function requestButton(passage) {
  return element("a", { class: "button", href: "#", "data-request": passage.seq, title: "The whole history, the tools and the schema (r)" }, "Request as sent");
}

/** Return the attempts of a streamed reply: the pieces of each, and whether it was dropped for another. */
function attemptsOf(pieces) {
  const attempts = [{ pieces: [], dropped: false }];
  for (const piece of pieces) {
    const body = bodyOf(piece);
    if (!body) continue;
    if (body.restart) {
      if (!attempts.at(-1).pieces.length) continue;
      attempts.at(-1).dropped = true;
      attempts.push({ pieces: [], dropped: false });
    } else attempts.at(-1).pieces.push({ t: piece.t, part: body.part ?? "content", text: body.text });
  }
  return attempts.filter((attempt) => attempt.pieces.length);
}

function streamSummary(request, pieces) {
  const attempts = attemptsOf(pieces);
  const dropped = attempts.filter((attempt) => attempt.dropped).length;
  const count = attempts.reduce((total, attempt) => total + attempt.pieces.length, 0);
  const first = attempts[0]?.pieces[0];
  const text = [many(count, "piece"), first ? `the first after ${duration(first.t - request.t)}` : "", dropped ? `${many(dropped, "attempt")} dropped` : ""].filter(Boolean).join(", ");
  return ["As it was streamed", element("span", { class: "summary" }, text), dropped ? badge("dropped", "warn") : null].filter(Boolean);
}

/** Draw the streamed text, attempt by attempt; a piece shows its time while the pointer is over it. */
function drawAttempts(pieces) {
  return attemptsOf(pieces).map(({ pieces: shown, dropped }, index) => {
    const start = shown[0].t;
    const box = element("div", { class: `prose streamed ${dropped ? "dropped" : ""}` });
    for (const { t, part, text } of shown) box.append(element("span", { class: part === "reasoning" ? "thought" : "", title: `+${duration(t - start)}` }, visible(text)));
    return element("div", {}, dropped ? element("p", { class: "summary" }, `Attempt ${index + 1}: its text was taken back, and the model was asked again.`) : null, box);
  });
}

function drawUnfinished(pieces) {
  const last = attemptsOf(pieces).at(-1);
  const note = element("p", { class: "summary waiting" }, last && !last.dropped ? "so far:" : "no reply yet");
  if (!last || last.dropped) return [note];
  const of = (wanted) => last.pieces.filter(({ part }) => (part === "reasoning") === wanted).map(({ text }) => text).join("");
  return [note, of(true) ? element("div", { class: "thought" }, drawMarkdown(of(true))) : null, of(false) ? element("div", { class: "said" }, drawMarkdown(of(false))) : null];
}

// --- tools ---

/** Return a call's name, the model's text of its arguments (`asked`), and the arguments that were sent (`sent`). */
function callOf(trace, passage, message) {
  const called = trace.messageOf.get(passage.also[0]);
  const asked = passage.place >= 0 ? bodyOf(message)?.tool_calls?.[passage.place] : null;
  const sent = bodyOf(called ?? (message.kind === "ToolCalled" ? message : null));
  const name = asked?.name ?? (sent ? `${sent.server}.${sent.tool}` : bodyOf(trace.messageOf.get(passage.also[1]))?.name ?? "a tool");
  return { name, asked: asked?.arguments, sent: sent?.arguments };
}

function drawCall(about) {
  const { trace, passage, message } = about;
  const call = callOf(trace, passage, message);
  const settled = trace.messageOf.get(passage.also[1]);
  const result = settled?.kind === "ToolReturned" ? bodyOf(settled)?.result : null;
  const args = call.sent ?? jsonIn(call.asked ?? "") ?? call.asked ?? null;
  const summary = [
    element("b", {}, visible(call.name)),
    element("span", { class: "summary args" }, briefly(args)),
    settled ? null : element("span", { class: "chip waiting" }, trace.messageOf.get(passage.also[2]) ? "asked about" : "no result"),
    settled?.mark ? badge(settled.mark, settled.grade) : null,
    result ? element("span", { class: "summary result" }, `→ ${briefly(resultValue(result))}`) : null,
    settled?.kind === "ServerDied" ? element("span", { class: "summary result" }, `→ ${visible(settled.summary.slice(settled.summary.indexOf(": ") + 2))}`) : null,
    shownToModel(trace, settled),
    took(settled),
  ].filter(Boolean);
  const hasImage = Boolean(settled) && settled.body.includes('"grue-image:');
  const box = fold(about, "call", summary, () => callContents(about, call, args, settled, result), hasImage, "call-fold");
  return [box];
}

/** Draw how much of a tool's result the model was sent; null if the result was not cut. */
function shownToModel(trace, settled) {
  const cut = trace.cutOf.get(`${settled?.turn} ${bodyOf(settled)?.call_id}`);
  return cut ? element("span", { class: "badge warn" }, `${[...cut.content].length.toLocaleString("en")} of ${cut.whole_chars.toLocaleString("en")} characters shown to the model`) : null;
}

function took(settled) {
  const seconds = bodyOf(settled)?.duration_s;
  return typeof seconds === "number" && seconds > 0 ? element("span", { class: "chip" }, duration(seconds)) : null;
}

function callContents({ trace, passage }, call, args, settled, result) {
  const [asked, decided] = [passage.also[2], passage.also[3]].map((seq) => trace.messageOf.get(seq));
  const changed = call.sent && jsonIn(call.asked ?? "") && written(call.sent) !== written(jsonIn(call.asked)) ? jsonIn(call.asked) : null;
  return [
    element("h4", {}, changed ? "Arguments, as they were sent" : "Arguments"), args === null ? null : drawValue(args),
    ...(changed ? [element("h4", {}, "Arguments, as the model wrote them"), drawValue(changed)] : []),
    ...(asked ? [element("h4", {}, "Approval"), element("p", {}, link(`#${asked.seq}`, "asked"), decided ? link(`#${decided.seq}`, " decided: ") : " not decided yet", decided ? visible(decided.summary) : null)] : []),
    settled ? element("h4", {}, "Result") : null,
    ...(result ? drawResult(result) : settled ? [element("p", { class: `told ${settled.grade}` }, visible(settled.summary))] : []),
    settled && !bodyOf(settled) ? cutNote(trace, settled) : null,
    element("p", { class: "passage-links" }, ...trace.messagesOf(passage).map((one) => link(`#${one.seq}`, `#${one.seq} ${one.kind}`))),
  ];
}

const resultValue = (result) => (result.is_error ? result.error_message ?? result.content : result.content ?? result.blocks);

function drawResult(result) {
  return [
    result.is_error ? element("p", { class: "told warn" }, visible(result.error_message ?? "error")) : null,
    result.content !== null && result.content !== undefined ? drawValue(result.content) : null,
    result.blocks?.length ? drawValue(result.blocks) : null,
  ];
}

/** Return the beginning of a value, in one line. */
function briefly(value) {
  if (value === null || value === undefined) return "";
  if (Array.isArray(value) && contentBlocks(value)) return briefly(value.map((block) => block.text ?? block.type).join(" · "));
  const only = typeof value === "object" && !Array.isArray(value) ? Object.values(value).find((one) => typeof one === "string" && one.length > 1) : null;
  const text = typeof value === "string" ? value : only ?? written(value);
  const shown = visible(text.slice(0, BRIEF * 2).replace(/\s+/g, " ")).replace(/grue-image:[0-9a-f]{32}/g, "image");
  return shown.length > BRIEF ? `${shown.slice(0, BRIEF)}…` : shown;
}

// --- what happened beside ---

function drawNoted({ passage, message, state }) {
  const body = () => [bodyOf(message) ? drawTree(Object.fromEntries(Object.entries(bodyOf(message)).filter(([name]) => name !== "type")), 0) : drawProse(message.body)];
  return [fold({ passage, state }, "note", [
    message.mark ? badge(message.mark, message.grade) : null,
    element("span", { class: "noted" }, `${factName(message.kind)}: ${message.summary}`),
  ].filter(Boolean), () => [...body(), link(`#${message.seq}`, `#${message.seq} ${message.kind}`)])];
}

function drawEnd({ trace, passage, message }) {
  const body = bodyOf(message) ?? {};
  const turn = trace.turnOf.get(message.turn);
  const outcome = { TurnCompleted: body.kind, TurnFailed: "failed", TurnParked: "parked" }[message.kind] ?? turn.outcome;
  const reason = message.kind === "TurnCompleted" ? body.reason : message.summary;
  const answer = message.kind === "TurnCompleted" && passage.text !== "same" && isSaid(body.answer);
  return [
    headLine(passage, "The turn ends", [badge(outcome ?? "", outcome === "answered" ? "good" : outcome === "failed" ? "fail" : "warn")]),
    reason ? element("p", { class: "told" }, visible(reason)) : null,
    answer ? element("div", { class: "said" }, drawValue(body.answer)) : null,
  ];
}
