"""The bar on top of a live page, its style and its script."""

BAR = (
    '<div id="live" role="status" aria-live="off"><progress max="1" value="0" '
    'aria-label="rounds done"></progress> <span id="live-text">connecting …</span>'
    '<ul id="live-warnings" aria-label="warnings of the run"></ul></div>'
)
STYLE = """
#live { position: sticky; top: 0; z-index: 3; padding: .4rem 1rem; background: Canvas;
  color: CanvasText; border-bottom: 1px solid GrayText; font-size: .9rem; }
#live progress { width: 12rem; max-width: 40%; vertical-align: middle; }
#live ul { margin: .2rem 0 0; padding-left: 1.2rem; }
#live ul:empty { display: none; }
@media print { #live { display: none; } }
"""
# Content is exchanged only when the folder has changed. What the reader has opened stays open, and
# the place is that of the element at the top of the window, since figures may grow above it.
SCRIPT = """
(() => {
  const bar = document.querySelector("#live progress");
  const text = document.getElementById("live-text");
  const list = document.getElementById("live-warnings");
  let seen = null;
  const anchor = () => {
    const all = document.querySelectorAll("main [id]");
    return [...all].filter((one) => one.getBoundingClientRect().top <= 80).pop();
  };
  const exchange = (fresh) => {
    const place = anchor(), before = place ? place.getBoundingClientRect().top : 0;
    const open = [...document.querySelectorAll("main details[id]")].map((d) => [d.id, d.open]);
    const focus = document.activeElement && document.activeElement.id;
    const main = document.querySelector("main");
    main.innerHTML = fresh.querySelector("main").innerHTML;
    document.title = fresh.title;
    for (const [id, state] of open) {
      const one = document.getElementById(id);
      if (one) one.open = state;
    }
    const again = place && document.getElementById(place.id);
    const moved = again ? again.getBoundingClientRect().top - before : 0;
    scrollBy({ top: moved, behavior: "instant" });
    const one = focus && document.getElementById(focus);
    if (one) one.focus({ preventScroll: true });
  };
  const show = (state) => {
    bar.value = state.share;
    text.textContent = state.text;
    list.replaceChildren(...(state.warnings || []).map((words) => {
      const item = document.createElement("li");
      item.textContent = words;
      return item;
    }));
  };
  const ask = async () => {
    let wait = 1000;
    try {
      const state = await (await fetch("state", { cache: "no-store" })).json();
      if (seen !== null && state.stamp !== seen) {
        const page = await (await fetch("./", { cache: "no-store" })).text();
        exchange(new DOMParser().parseFromString(page, "text/html"));
      }
      seen = state.stamp;
      show(state);
      if (state.finished) return;
    } catch (error) {
      text.textContent = "no answer from the run: it has ended or was stopped";
      wait = 5000;
    }
    setTimeout(ask, wait);
  };
  ask();
})();
"""
