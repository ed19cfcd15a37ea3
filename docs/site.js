// A wide table scrolls on a narrow screen: let the keyboard reach it too. The theme wraps tables after it has loaded.
new MutationObserver(() => {
  for (const box of document.querySelectorAll(".md-typeset__scrollwrap:not([tabindex])")) box.tabIndex = 0;
}).observe(document.documentElement, { childList: true, subtree: true });
