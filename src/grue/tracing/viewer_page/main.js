// Start the page with the data that it holds.

const read = (id) => JSON.parse(byId(id).textContent);
images.served = read("trace-episode").live;
const viewer = new Viewer(new Trace(read("trace-messages"), read("trace-episode")));
if (viewer.trace.episode.live) follow(viewer);
viewer.focusTab();
document.documentElement.dataset.ready = String(viewer.trace.messages.length);
