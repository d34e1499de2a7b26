"""The page's few lines of script: values at the pointer, and arrow keys from point to point.

Without it the page loses only these: values also stand in tables, and nothing is fetched.
"""

SCRIPT = """
(() => {
  const tip = document.getElementById("tip");
  const show = (point) => {
    tip.textContent = point.getAttribute("aria-label");
    tip.hidden = false;
    const box = point.getBoundingClientRect(), own = tip.getBoundingClientRect();
    const left = Math.min(Math.max(box.left + box.width / 2 - own.width / 2, 8),
      document.documentElement.clientWidth - own.width - 8);
    const above = box.top - own.height - 6;
    tip.style.left = left + "px";
    tip.style.top = (above > 4 ? above : box.bottom + 6) + "px";
  };
  const hide = () => { tip.hidden = true; };
  const move = (group, from, step) => {
    const points = [...group.querySelectorAll(".pt")];
    const next = points[Math.min(Math.max(points.indexOf(from) + step, 0), points.length - 1)];
    from.setAttribute("tabindex", "-1");
    next.setAttribute("tabindex", "0");
    next.focus();
  };
  const steps = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -1e9, End: 1e9 };
  for (const group of document.querySelectorAll(".points")) {
    group.addEventListener("pointerover", (e) => {
      const point = e.target.closest(".pt");
      if (point) show(point);
    });
    group.addEventListener("pointerout", hide);
    group.addEventListener("focusin", (e) => show(e.target.closest(".pt")));
    group.addEventListener("focusout", hide);
    group.addEventListener("keydown", (e) => {
      if (e.key === "Escape") { hide(); return; }
      if (!(e.key in steps)) return;
      e.preventDefault();
      move(group, e.target.closest(".pt"), steps[e.key]);
    });
  }
  addEventListener("scroll", hide, { passive: true });
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = [...document.querySelectorAll("details[data-print]:not([open])")];
    for (const one of opened) one.open = true;
  });
  addEventListener("afterprint", () => { for (const one of opened) one.open = false; });
  document.documentElement.classList.add("ready");
})();
"""
