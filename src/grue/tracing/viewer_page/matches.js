// Why a message matched a search: the place of the text in the message, and the text around it.

const BEFORE = 28;
const AFTER = 60;

/** Return where and how a message matches; null if it does not, or if its row shows the matching text anyway. */
function matchIn(message, words) {
  if (!words.length) return null;
  const shown = `#${message.seq} ${message.kind} ${message.mark} ${message.summary}`.toLowerCase();
  if (words.some((word) => shown.includes(word))) return null;
  const body = message.body.toLowerCase();
  for (const word of words) {
    const at = body.indexOf(word);
    if (at >= 0) return { path: pathAt(message.body, at), text: excerpt(message.body, at, word.length) };
  }
  return null;
}

function excerpt(body, at, length) {
  const start = Math.max(0, at - BEFORE);
  const end = Math.min(body.length, at + length + AFTER);
  const text = body.slice(start, end).replace(/\\n|\\r|\\t/g, " ").replace(/\\"/g, '"').replace(/\s+/g, " ");
  return `${start > 0 ? "…" : ""}${text}${end < body.length ? "…" : ""}`;
}

/** Return the path of the value at a place of JSON text, such as `result.content.0.text`. */
function pathAt(text, at) {
  const path = [];
  TOKENS.lastIndex = 0;
  for (const found of text.matchAll(TOKENS)) {
    const [token] = found;
    const top = path[path.length - 1];
    if (found.index + token.length > at && !"{}[],:".includes(token)) {
      if (top && !top.array && top.expects) top.name = unquoted(token) ?? token;
      break;
    }
    if (token === "{") path.push({ array: false, name: "", expects: true });
    else if (token === "[") path.push({ array: true, name: 0 });
    else if (token === "}" || token === "]") path.pop();
    else if (token === "," && top) {
      if (top.array) top.name += 1;
      else top.expects = true;
    } else if (top && !top.array && top.expects && token !== ":") {
      top.name = unquoted(token) ?? "";
      top.expects = false;
    }
  }
  return path.map(({ name }) => String(name)).filter(Boolean).join(".");
}

/** Return the line that says why a message matched, or null. */
function drawMatch(message, words) {
  const match = matchIn(message, words);
  if (!match) return null;
  return element("span", { class: "match" }, element("i", {}, `in ${visible(match.path) || "the message"}: `), visible(match.text));
}

/** Yield the places of words in the text of elements. */
function* rangesOf(words, elements) {
  for (const root of elements) {
    const walker = document.createTreeWalker(root, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
      const text = node.data.toLowerCase();
      for (const word of words) {
        for (let at = text.indexOf(word); at >= 0; at = text.indexOf(word, at + word.length)) {
          yield new StaticRange({ startContainer: node, startOffset: at, endContainer: node, endOffset: Math.min(at + word.length, node.length) });
        }
      }
    }
  }
}
