"""The bar on top of a live page, its style and its script."""

BAR = (  # with the stamp of the folder as the page has it
    '<div id="live" data-stamp="{stamp}" role="status" aria-live="off">'
    '<progress max="1" value="0" '
    'aria-label="rounds done"></progress> <span id="live-text">connecting …</span>'
    '<ul id="live-warnings" aria-label="warnings of the run"></ul></div>'
)
STYLE = """
#live { position: sticky; top: 0; z-index: 3;
  padding: .4rem max(1.5rem, (100% - 1160px) / 2 + 1.5rem); background: Canvas;
  color: CanvasText; border-bottom: 1px solid GrayText; font-size: .9rem; }
#live progress { width: 12rem; max-width: 40%; vertical-align: middle; margin-right: .4rem; }
#live ul { margin: .2rem 0 0; padding-left: 1.2rem; }
#live ul:empty { display: none; }
@media print { #live { display: none; } }
"""
# Content is exchanged only when the folder has changed. What the reader has opened stays open,
# boxes stay scrolled, and the place is that of the last heading at the top of the window, since
# figures may grow above it. Most parts have no id: each is known by where it is and what it says,
# without the counts in it.
SCRIPT = """
(() => {
  const live = document.getElementById("live");
  const bar = live.querySelector("progress");
  const text = document.getElementById("live-text");
  const list = document.getElementById("live-warnings");
  let seen = live.dataset.stamp, ended = false, rested = 0;
  const said = (one) => {
    if (one.matches(".pt")) return one.getAttribute("aria-label");
    const fold = one.matches("summary") ? one.parentElement : one;
    const inner = fold.matches("details, .scroll") ? fold.querySelector("caption") : one;
    return inner ? inner.textContent.replace(/[0-9]+/g, "") : "";
  };
  const key = (one) => {
    const home = one.closest("[id]"), figure = one.closest("figure");
    const head = figure && figure.querySelector("h2, h3");
    const words = one.id ? "" : said(one);
    return [home ? home.id : "", head ? head.textContent : "", one.localName, words].join("|");
  };
  const named = (selector) => {
    const found = new Map();
    for (const one of document.querySelectorAll(selector)) {
      let name = key(one);
      while (found.has(name)) name += "+";
      found.set(name, one);
    }
    return found;
  };
  const top = (one) => one.getBoundingClientRect().top;
  const PARTS = "main section[id], main h2, main h3, main summary, main caption";
  const FOCUS = "main summary, main .pt, main button, main a, main [tabindex]";
  const BOXES = "main .scroll";
  const place = () => [...named(PARTS)].filter(([, one]) => one.checkVisibility())
    .map(([name, one]) => [name, top(one)]).filter(([, height]) => height <= 80).reverse();
  const exchange = (fresh) => {
    const places = place();
    const open = [...named("main details")].map(([name, one]) => [name, one.open]);
    const boxes = [...named(BOXES)].map(([name, one]) => [name, one.scrollLeft, one.scrollTop]);
    const active = document.activeElement;
    const focus = [...named(FOCUS)].find(([, one]) => one === active);
    document.querySelector("main").innerHTML = fresh.querySelector("main").innerHTML;
    document.title = fresh.title;
    document.getElementById("tip").hidden = true;
    const folds = named("main details");
    for (const [name, state] of open) if (folds.has(name)) folds.get(name).open = state;
    const scrolled = named(BOXES);
    for (const [name, left, height] of boxes) {
      if (scrolled.has(name)) scrolled.get(name).scrollTo(left, height);
    }
    const parts = named(PARTS);
    const still = places.find(([name]) => parts.has(name) && parts.get(name).checkVisibility());
    if (still) scrollBy({ top: top(parts.get(still[0])) - still[1], behavior: "instant" });
    const again = focus && named(FOCUS).get(focus[0]);
    if (again) again.focus({ preventScroll: true });
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
  const update = async () => {
    const state = await (await fetch("state", { cache: "no-store" })).json();
    // Making a large page takes time from the run: at most a tenth of it.
    if (state.stamp !== seen && (state.finished || performance.now() > rested)) {
      const began = performance.now();
      const answer = await fetch("./", { cache: "no-store" });
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      // A file that is only half there: the page stays, and the sentence says what is wrong.
      if (!answer.ok) return show({ ...state, text: fresh.querySelector("main").textContent });
      exchange(fresh);
      seen = fresh.getElementById("live").dataset.stamp;
      rested = performance.now() + 10 * (performance.now() - began);
    }
    show(state);
    ended = state.finished;
  };
  const ask = async () => {
    let wait = 1000;
    try {
      await update();
      if (ended) wait = 5000;
    } catch (error) {
      if (ended) return;  // the run has ended, and its server with it
      text.textContent = "no answer: the run has ended (see report.html) or was stopped";
      wait = 5000;
    }
    setTimeout(ask, wait);
  };
  ask();
})();
"""
