// A page that its server keeps up to date: it asks for what is new in the trace.

const POLL_MS = 700;
const RETRY_MS = 3000;

/** Follow the trace until it has ended. */
async function follow(viewer) {
  let from = 0;
  const state = byId("live");
  state.hidden = false;
  const say = (text, kind = "") => {
    if (state.textContent !== text) state.textContent = text;
    state.className = kind;
  };
  say("connecting");
  for (;;) {
    let pause = POLL_MS;
    try {
      const answer = await fetch(`feed?from=${from}`, { cache: "no-store" });
      if (!answer.ok) throw new Error(String(answer.status));
      const { next, over, error, pieces } = await answer.json();
      for (const piece of pieces) viewer.extend(piece);
      if (pieces.length) pause = 0;
      from = next;
      if (error) return say(error, "fail");
      if (over && !pieces.length) return say("ended");
      say("live", "good");
    } catch {
      say("The server does not answer. This page shows what it had.", "fail");
      pause = RETRY_MS;
    }
    await new Promise((done) => setTimeout(done, pause));
  }
}
