"""The page's few lines of script: values and words at the pointer, arrow keys between points.

Without it the page loses only these: values are also in tables, and nothing is fetched.
"""

SCRIPT = """
(() => {
  const tip = document.getElementById("tip");
  const words = (one) => one.dataset.tip || one.getAttribute("aria-label");
  const show = (one) => {
    if (!one) return;
    tip.textContent = words(one);
    tip.hidden = false;
    const box = one.getBoundingClientRect(), own = tip.getBoundingClientRect();
    const left = Math.min(Math.max(box.left + box.width / 2 - own.width / 2, 8),
      document.documentElement.clientWidth - own.width - 8);
    const above = box.top - own.height - 6;
    tip.style.left = left + "px";
    tip.style.top = (above > 4 ? above : box.bottom + 6) + "px";
    if (one.dataset.tip) one.setAttribute("aria-describedby", "tip");
  };
  const hide = () => { tip.hidden = true; };
  const move = (group, from, step) => {
    const points = [...group.querySelectorAll(".pt")];
    const next = points[Math.min(Math.max(points.indexOf(from) + step, 0), points.length - 1)];
    if (!from || !next) return;
    from.setAttribute("tabindex", "-1");
    next.setAttribute("tabindex", "0");
    next.focus();
  };
  const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -1e9, End: 1e9 };
  // On the document: a browser makes a drawing that listens to keys itself a stop without a name,
  // and a live page exchanges its content.
  const at = (e) => e.target instanceof Element ? e.target.closest(".pt, [data-tip]") : null;
  const told = (e) => { const one = at(e); return one && words(one) ? one : null; };
  document.addEventListener("pointerover", (e) => { if (told(e)) show(told(e)); });
  document.addEventListener("pointerout", (e) => { if (told(e)) hide(); });
  document.addEventListener("focusin", (e) => show(told(e)));
  document.addEventListener("focusout", hide);
  document.addEventListener("keydown", (e) => {
    if (e.key === "Escape") hide();
    const from = at(e), group = from && from.closest(".points");
    if (!group || !(e.key in steps)) return;
    e.preventDefault();
    move(group, from, steps[e.key]);
  });
  // The tab key scrolls to what it reaches: the words of that stay, next to it.
  addEventListener("scroll", () => {
    const one = document.activeElement;
    if (!tip.hidden && one && one.matches(".pt, [data-tip]")) show(one); else hide();
  }, { passive: true });
  const reveal = () => {
    const one = document.getElementById(location.hash.slice(1));
    if (one instanceof HTMLDetailsElement) one.open = true;
  };
  addEventListener("hashchange", reveal);
  reveal();
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details[data-print]:not([open])")];
    for (const one of opened) one.open = true;
  });
  addEventListener("afterprint", () => { for (const one of opened) one.open = false; });
  document.documentElement.classList.add("ready");
})();
"""
