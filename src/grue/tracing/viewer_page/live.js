// A page that its server keeps up to date: it asks for what is new in the trace.

const POLL_MS = 700;
const RETRY_MS = 3000;

/** Follow the trace for as long as the page is open. */
async function follow(viewer) {
  let from = 0;
  let caughtUp = false;
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
      from = next;
      if (pieces.length) {
        viewer.extend(pieces);
        pause = 50;
      } else if (!caughtUp) {
        caughtUp = true;
        viewer.goToAddress(); // what it names may have come only now
      }
      if (error) say(error, "fail");
      else say(over ? "ended" : "live", over ? "" : "good");
    } catch {
      say("The server does not answer. This page shows what it had.", "fail");
      pause = RETRY_MS;
    }
    await new Promise((done) => setTimeout(done, pause));
  }
}
