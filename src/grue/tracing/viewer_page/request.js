// A request in the form in which it was sent: the whole conversation so far, the offered tools and the answer's
// schema. The trace holds only the new messages of each request. The conversation is built again from all
// requests, by the rules of grue's protocol/context/history.py.

const NOT_CALLED = "(not called)";
const LEFT_OUT = "[Earlier parts of the conversation were left out here, because it was too long for the model.]";

class Conversation {
  constructor() {
    Object.assign(this, { entries: [], unread: null, tools: null, schema: null, missing: 0 });
  }

  say(items, seq) {
    const answered = new Set(items.filter(({ type }) => type === "tool").map(({ call_id: id }) => id));
    if (this.unread) this.entries.push({ ...this.unread, calls: this.unread.calls.filter(({ call_id: id }) => answered.has(id)) });
    this.unread = null;
    const said = items.filter(({ type, text }) => type !== "system" || text);
    if (said.length) this.entries.push({ seq, items: said });
  }

  keep(reply, seq) {
    this.unread = { seq, content: reply.content ?? "", calls: reply.tool_calls ?? [] };
  }

  forget() {
    this.unread = null;
  }

  close(end) {
    if (end?.unread) this.unread = null;
    if (!this.unread) return;
    const told = end?.untold ?? [];
    const answered = new Set(told.map(({ call_id: id }) => id));
    const others = this.unread.calls.filter(({ call_id: id }) => !answered.has(id)).map(({ call_id: id }) => ({ type: "tool", call_id: id, content: NOT_CALLED }));
    this.say([...told, ...others], 0);
  }

  rewrite({ start, stop, entries }, seq) {
    const made = entries.map((entry) => (entry.type === "reply" ? { seq, content: entry.content ?? "", calls: entry.tool_calls ?? [] } : { seq, items: entry.items ?? [] }));
    this.entries.splice(start, stop - start, ...made.map((entry) => ({ ...entry, rewritten: seq })));
  }

  /** Make the history shorter; `leftOut`: how many entries after the first were left out. */
  change(change, seq, leftOut) {
    if (change.type === "shortened") {
      if (leftOut) this.entries.splice(1, leftOut, { seq, items: [{ type: "user", text: LEFT_OUT }], rewritten: seq });
      return;
    }
    if (change.type === "summarised") {
      this.entries.splice(1, this.entries.length - 1, { seq, items: change.items, rewritten: seq });
      return;
    }
    const shorter = new Map((change.results ?? []).map((result) => [result.call_id, result]));
    let texts = change.texts ?? 0;
    this.entries = this.entries.map((entry, at) => (entry.items && at ? { ...entry, items: entry.items.map((item) => {
      if (item.type === "tool" && shorter.has(item.call_id)) return { type: "tool", ...shorter.get(item.call_id), rewritten: seq };
      if (item.type === "user" && item.stub && item.text !== item.stub && texts > 0) {
        texts -= 1;
        return { type: "user", text: item.stub, stub: item.stub, rewritten: seq };
      }
      return item;
    }) } : entry));
  }
}

const OF_CONVERSATIONS = new Set(["RunTurn", "RequestCompletion", "CompletionReceived", "DropCompletion", "ReplyDropped", "HistoryRewritten", "RewriteHistory", "TurnCompleted", "TurnFailed"]);

/** Return the conversation up to a request, with the parts of the request itself. */
function conversationAt(trace, request) {
  const talks = new Map();
  const ofTurn = new Map();
  const ofRequest = new Map();
  const talk = (name) => {
    if (!talks.has(name)) talks.set(name, new Conversation());
    return talks.get(name);
  };
  for (const message of trace.messageOf.values()) {
    if (!OF_CONVERSATIONS.has(message.kind)) continue;
    const body = bodyOf(message) ?? { cut: true };
    if (message.kind === "RunTurn") ofTurn.set(message.seq, beginTurn(talks, talk, body));
    else if (message.kind === "RequestCompletion") {
      const place = talk(body.conversation);
      const sent = ask(place, body, message.seq);
      if (message === request) return { ...sent, body, missing: place.missing };
      if (!body.aside) ofRequest.set(message.seq, place);
    } else if (message.kind === "CompletionReceived") ofRequest.get(message.cause)?.keep(body, message.seq);
    else if (message.kind === "DropCompletion") ofRequest.set(message.seq, talk(body.conversation));
    else if (message.kind === "ReplyDropped") ofRequest.get(message.cause)?.forget();
    else if (message.kind === "HistoryRewritten") talk(body.conversation).rewrite(body.rewrite ?? { start: 0, stop: 0, entries: [] }, message.seq);
    else if (message.kind === "RewriteHistory") talk(body.conversation).change(body.change ?? {}, message.seq, message.leftOut);
    else ofTurn.get(message.cause)?.close(body);
  }
  return null;
}

function beginTurn(talks, talk, body) {
  const name = body.history?.conversation ?? `turn-${body.turn}`;
  if (!body.resumed && !body.history?.length) talks.delete(name);
  const known = talks.has(name);
  const place = talk(name);
  if (!known && body.history?.length) place.missing = body.history.length;
  if (!body.resumed) place.close(null);
  return place;
}

/** Add a request to its conversation; return what the model was sent. */
function ask(place, body, seq) {
  const mode = body.mode ?? {};
  if (mode.tools) place.tools = mode.tools;
  const items = body.new ?? [];
  const tools = mode.type === "offer" ? place.tools : null;
  const schema = mode.type === "answer" ? mode.answer ?? null : null;
  if (body.aside) return { entries: [...place.entries, { seq, items }], fresh: seq, tools, schema };
  place.say(items, seq);
  return { entries: [...place.entries], fresh: seq, tools, schema };
}

// --- showing it ---

/** Show something in the dialog in which requests are shown. */
function showDialog({ title, contents }) {
  byId("request-title").textContent = title;
  byId("request-body").replaceChildren(...contents.filter(Boolean));
  if (!byId("request").open) byId("request").showModal();
  byId("request-body").scrollTop = 0;
}

/** Return the title and the contents of the dialog for a request. */
function requestView(trace, request) {
  const sent = conversationAt(trace, request);
  if (!sent || sent.body.cut) return { title: "Request", contents: [cutNote(trace, request)], json: "" };
  const count = sent.entries.reduce((total, entry) => total + (entry.items?.length ?? 1), 0);
  const title = `Request ${sent.body.request} of ${trace.turnOf.get(request.turn).name.toLowerCase()}: ${many(count, "message")}${sent.tools ? `, ${many(sent.tools.length, "tool")}` : ""}`;
  const contents = [
    sent.missing ? element("p", { class: "note" }, `Not here: ${many(sent.missing, "item")} of this conversation, said before this trace began or under another name.`) : null,
    element("p", { class: "summary" }, "As grue sends it, before it is written in the provider's format. Marked: what is new in this request."),
    ...sent.entries.flatMap((entry) => drawEntryOf(entry, sent.fresh)),
    sent.tools?.length ? element("h3", {}, "Tools on offer") : null,
    ...(sent.tools ?? []).map(drawTool),
    sent.schema ? element("h3", {}, `Answer: ${sent.schema.name}`) : null,
    sent.schema ? drawTree(sent.schema.schema, 0) : null,
  ];
  return { title, contents: contents.filter(Boolean), json: written(asChat(sent), 2) };
}

function drawEntryOf(entry, fresh) {
  const marks = (more) => [entry.seq === fresh ? badge("new", "good") : null, entry.rewritten || more ? badge("rewritten", "warn") : null];
  if (!entry.items) return [drawTurnOfTalk("assistant", entry.seq, marks(), [entry.content ? drawText(entry.content, 1) : null, ...entry.calls.map(drawAskedCall)])];
  return entry.items.map((item) => drawTurnOfTalk(item.type, entry.seq, marks(item.rewritten), [
    item.type === "tool" ? element("p", { class: "summary" }, visible(`answers ${item.call_id}`), item.whole_chars ? badge(`cut from ${item.whole_chars.toLocaleString("en")} characters`, "warn") : null) : null,
    item.type === "tool" ? drawText(item.content ?? "", 0) : drawProse(item.text ?? ""),
    ...drawAttachments(item.attachments),
  ]));
}

function drawAskedCall(call) {
  return element("div", { class: "asked-call" }, element("b", {}, visible(call.name)), element("span", { class: "summary" }, visible(` ${call.call_id}`)), drawText(call.arguments, 0));
}

function drawTurnOfTalk(role, seq, marks, contents) {
  return element("section", { class: `talk ${role}` },
    element("p", { class: "passage-head" }, element("b", {}, visible(role)), ...marks, seq ? element("a", { class: "to-message", href: `#${seq}` }, `#${seq}`) : null),
    ...contents);
}

function drawTool(tool) {
  return lazyFold([element("b", {}, visible(tool.full_name || `${tool.server}.${tool.tool}`)), element("span", { class: "summary" }, visible((tool.description ?? "").slice(0, BRIEF)))],
    () => [tool.description ? drawProse(tool.description) : null, drawTree(tool.input_schema ?? {}, 0)]);
}

/** Return a request in the format of chat completions, which most tools can read. */
function asChat({ entries, tools, schema }) {
  const messages = entries.flatMap((entry) => (entry.items ? entry.items.map(asChatItem) : [{
    role: "assistant", content: entry.content || null,
    ...(entry.calls.length ? { tool_calls: entry.calls.map(({ call_id: id, name, arguments: text }) => ({ id, type: "function", function: { name, arguments: text } })) } : {}),
  }]));
  return {
    messages,
    ...(tools?.length ? { tools: tools.map((tool) => ({ type: "function", function: { name: tool.full_name || `${tool.server}.${tool.tool}`, description: tool.description ?? "", parameters: tool.input_schema } })) } : {}),
    ...(schema ? { response_format: { type: "json_schema", json_schema: { name: schema.name, schema: schema.schema } } } : {}),
  };
}

function asChatItem(item) {
  if (item.type === "tool") return { role: "tool", tool_call_id: item.call_id, content: item.content };
  return { role: item.type, content: item.text };
}
