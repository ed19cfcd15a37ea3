// Start the page with the data that it holds. The episode's head is painted first: the messages of a long trace
// take a second or two.

const LONGEST_WAIT_MS = 100; // a page in a background tab gets no frames

/** Wait until what is drawn has been painted. */
const painted = () => new Promise((done) => {
  requestAnimationFrame(() => setTimeout(done));
  setTimeout(done, LONGEST_WAIT_MS);
});

const read = (id) => JSON.parse(byId(id).textContent);
const episode = read("trace-episode");
images.served = episode.live;
byId("title").textContent = episode.title;
const preview = byId("passages").appendChild(drawCard({ episode, overview: episode.overview, turns: [] }));
await painted();
const trace = new Trace(read("trace-messages"), episode);
preview.remove();
const viewer = new Viewer(trace);
if (episode.live) follow(viewer);
viewer.focusTab();
document.documentElement.dataset.ready = String(trace.messages.length);
