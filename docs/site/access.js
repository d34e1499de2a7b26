// What the theme leaves out for readers without a mouse or a screen.
const WIDE = ".formula, pre > code, .md-typeset__scrollwrap";

// What scrolls sideways can be reached with the keyboard.
const reachable = () => {
  for (const one of document.querySelectorAll(WIDE)) {
    if (one.scrollWidth > one.clientWidth) one.tabIndex = 0;
    else one.removeAttribute("tabindex");
  }
};

// The theme makes a landmark of each code block's buttons and of each part of the contents: each has
// a name of its own.
const named = () => {
  document.querySelectorAll(".md-code__nav").forEach((one, number) => {
    one.setAttribute("aria-label", `Code block ${number + 1}`);
  });
  document.querySelectorAll(".md-nav--secondary .md-nav:not([data-named])").forEach((one, number) => {
    one.dataset.named = one.ariaLabel += ` (part ${number + 1})`;
  });
};

const seen = new MutationObserver(() => {
  named();
  reachable();
});
seen.observe(document.body, { childList: true, subtree: true });
addEventListener("resize", reachable);
addEventListener("load", reachable);
named();
