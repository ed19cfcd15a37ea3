// Start the page with the data that it holds: first the episode and its turns with the first messages, then the
// rest, while the reader can use the page. The attribute `data-shown` is set when the first screen is drawn, and
// `data-ready` when all messages have been read.

const FIRST_WAIT_MS = 1000;

const read = (id) => JSON.parse(byId(id).textContent);
const episode = read("trace-episode");
images.served = episode.live;
const trace = new Trace(episode);
const pieces = new Pieces();
const latest = performance.now() + FIRST_WAIT_MS;
let first = pieces.take();
while (!first && !pieces.done && performance.now() < latest) {
  await idle();
  first = pieces.take();
}
if (first) trace.extend(first);
const viewer = new Viewer(trace);
viewer.focusTab();
document.documentElement.dataset.shown = String(trace.messageOf.size);
if (episode.live) {
  follow(viewer);
  offerMark();
}
await viewer.readRest(pieces);
