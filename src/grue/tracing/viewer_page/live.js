// A page that follows a growing trace: it asks its server for new pieces again and again.

const POLL_MS = 700;
const RETRY_MS = 3000;

/** Let the reader give the episode a score, which the server writes beside the run. */
async function offerMark() {
  const dialog = byId("mark");
  const button = byId("mark-button");
  const show = (mark) => {
    if (!mark) return;
    byId("mark-score").value = String(mark.score);
    byId("mark-reason").value = mark.reason;
    button.textContent = `Mark: ${mark.score}`;
  };
  const ask = async (options) => {
    const answer = await fetch("mark", { cache: "no-store", ...options });
    if (!answer.ok) throw new Error(await answer.text());
    show(await answer.json());
  };
  button.addEventListener("click", () => {
    byId("mark-said").textContent = "";
    dialog.showModal();
    byId("mark-score").focus();
  });
  byId("mark-close").addEventListener("click", () => dialog.close());
  byId("mark-save").addEventListener("click", async () => {
    if (!byId("mark-score").reportValidity()) return;
    const mark = { score: byId("mark-score").valueAsNumber, reason: byId("mark-reason").value };
    try {
      await ask({ method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(mark) });
      byId("mark-said").textContent = "Saved beside the run.";
    } catch (error) {
      byId("mark-said").textContent = error.message || "The server does not answer.";
    }
  });
  try {
    await ask();
    button.hidden = false;
  } catch {
    // The server is gone, so no mark can be written.
  }
}

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
