// A message's JSON, for reading: indented, coloured, long texts in their lines. Numbers stay as they were written.

const MOST_COLOURED = 4000;
const TOKENS = /"[^"\\]*(?:\\[^][^"\\]*)*"?|[{}[\],:]|[^\s{}[\],:"]+/g;
// Characters that cannot be seen, or that reverse the direction of the text after them, are shown as escapes.
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb]/g;

/** Return text with invisible characters as escapes; line breaks and tabs stay. */
function visible(text) {
  return text.replace(UNSEEN, (char) => `\\u${char.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/**
 * Draw JSON text, whole or cut off somewhere.
 *
 * exact: show strings as the JSON text has them. Otherwise a string of several lines is shown in its lines, and
 * a string that is JSON itself is drawn as JSON.
 */
function drawJson(text, exact) {
  const pre = element("pre", { class: "json" });
  const tokens = text.match(TOKENS) ?? [];
  const budget = { left: MOST_COLOURED };
  appendTokens(pre, tokens, exact, budget);
  return pre;
}

function appendTokens(pre, tokens, exact, budget) {
  let depth = 0;
  let plain = "";
  const flush = () => {
    if (plain) pre.append(plain);
    plain = "";
  };
  tokens.forEach((token, index) => {
    const closing = token === "}" || token === "]";
    if (closing) depth -= 1;
    const previous = tokens[index - 1];
    const empty = closing && (previous === "{" || previous === "[");
    const opens = previous === "{" || previous === "[" || previous === ",";
    if ((opens || closing) && !empty && index > 0) plain += `\n${"  ".repeat(Math.max(depth, 0))}`;
    const kind = tokenKind(token, tokens[index + 1]);
    if (kind && budget.left > 0) {
      flush();
      budget.left -= 1;
      pre.append(drawToken(token, kind, exact, budget));
    } else {
      plain += token === ":" ? ": " : visible(token);
    }
    if (token === "{" || token === "[") depth += 1;
  });
  flush();
}

function tokenKind(token, next) {
  if (token.startsWith('"')) return next === ":" ? "key" : "string";
  return /^[-\w]/.test(token) ? "value" : "";
}

function drawToken(token, kind, exact, budget) {
  if (kind === "string" && !exact) {
    const text = unquoted(token);
    if (jsonIn(text) !== undefined) {
      const inner = element("span", { class: "block", title: "JSON, in a string" });
      appendTokens(inner, text.match(TOKENS) ?? [], exact, budget);
      return inner;
    }
    if (text !== null && text.trim().includes("\n")) return element("span", { class: "block string" }, visible(text));
  }
  return element("span", { class: kind }, visible(token));
}

function unquoted(token) {
  try {
    return JSON.parse(token);
  } catch {
    return null; // cut off
  }
}
