// A wide table scrolls on a narrow screen: let the keyboard reach it too. The theme wraps tables after it has loaded.
new MutationObserver(() => {
  for (const box of document.querySelectorAll(".md-typeset__scrollwrap:not([tabindex])")) box.tabIndex = 0;
}).observe(document.documentElement, { childList: true, subtree: true });

// The theme leaves its dialog and its two switches without a name, which a screen reader would say.
document.querySelector(".md-search")?.setAttribute("aria-label", "Search");
document.querySelector("#__search")?.setAttribute("aria-label", "Search");
document.querySelector("#__drawer")?.setAttribute("aria-label", "Navigation");
