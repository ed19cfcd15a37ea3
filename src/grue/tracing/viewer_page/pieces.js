// The pieces of a trace, in the order in which they stand in the page. The browser may still be reading the page
// when the script runs, so a piece is taken only when something follows it, or the page is at its end.

const SLICE_MS = 12; // how long pieces are taken before the page can answer the reader again

class Pieces {
  constructor(side = 0) {
    this.side = String(side);
    this.last = byId("trace-episode");
    this.done = false;
  }

  /** Take the next piece; null: it is not in the page yet, or, if `done` is true, there are no more pieces. */
  take() {
    const read = document.readyState !== "loading";
    let next = this.last.nextElementSibling;
    while (next && next.dataset.piece !== this.side) next = next.nextElementSibling;
    if (next && (read || next.nextElementSibling)) {
      this.last = next;
      return JSON.parse(next.textContent);
    }
    this.done = read && !next;
    return null;
  }

  /** Yield pieces; pause so that the page can answer the reader, and the browser can read more of the page. */
  async *[Symbol.asyncIterator]() {
    let began = performance.now();
    while (!this.done) {
      const piece = this.take();
      if (piece) yield piece;
      if (piece && performance.now() - began < SLICE_MS) continue;
      await idle();
      began = performance.now();
    }
  }
}

/** Wait until the browser has nothing more urgent to do; not long in a background tab. */
const idle = () => new Promise((done) => {
  if (globalThis.requestIdleCallback) requestIdleCallback(done, { timeout: 60 });
  else setTimeout(done);
});
