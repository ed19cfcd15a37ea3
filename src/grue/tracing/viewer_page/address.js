// The part of the page's address after `#` says what is shown: these parts, joined by `&`.
//   123            a message, in the list of messages        turn-3       a turn, in the story
//   tab=messages   another tab than the story                passage=12   a passage of the story
//   request=12     the request as it was sent                plot=score   what is plotted
//   q, turns, actor, kind, failures: the search and the filters

const FILTER_PARTS = ["q", "turns", "actor", "kind", "failures"];

/** Return the parts of an address as a plain object; parts of another form are left out. */
function readAddress(hash) {
  const parts = {};
  for (const part of hash.replace(/^#/, "").split("&")) {
    const [, turn, seq] = /^(?:turn-(\d+)|(\d+))$/.exec(part) ?? [];
    if (turn) parts.turn = Number(turn);
    else if (seq) parts.message = Number(seq);
    else if (part.includes("=")) {
      const [name, value] = part.split(/=(.*)/s);
      parts[name] = decoded(value);
    }
  }
  parts.tab ??= parts.message ? "messages" : parts.plot ? "plot" : "story";
  return parts;
}

function decoded(value) {
  try {
    return decodeURIComponent(value.replace(/\+/g, " "));
  } catch {
    return value; // a stray percent sign
  }
}

/** Return a short address that leads back to this state. */
function writeAddress({ tab, message, turn, passage, request, plot, filters = {} }) {
  const parts = [];
  if (tab === "messages" && message) parts.push(String(message));
  else if (turn !== null && turn !== undefined) parts.push(`turn-${turn}`);
  if (tab === "messages" && !message) parts.push("tab=messages");
  if (tab === "table") parts.push("tab=table");
  if (tab === "plot") parts.push(plot ? `plot=${encodeURIComponent(plot)}` : "tab=plot");
  if (tab === "story" && passage) parts.push(`passage=${passage}`);
  if (request) parts.push(`request=${request}`);
  for (const name of FILTER_PARTS) if (filters[name]) parts.push(`${name}=${encodeURIComponent(filters[name])}`);
  return `#${parts.join("&")}`;
}
