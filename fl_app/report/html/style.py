"""The look of the page: one sheet, light and dark, screen and paper, wide and narrow.

Series colours are Okabe and Ito's (2008), which colour-blind people can tell apart, darkened or
lightened for contrast with the page.
"""

STYLE = """
:root {
  color-scheme: light dark;
  --paper: #fcfbf8; --sheet: #ffffff; --ink: #1b2126; --soft: #56606a; --rule: #dcdad3;
  --link: #005a92; --shade: #f3f1ea;
  --c0: #0072b2; --c1: #c2500a; --c2: #00795a; --c3: #a8497f; --c4: #6a51a3; --c5: #8a6d00;
  --ref: #7b848c;
  --leak: #a63603; --hint: #7f5d00; --model: #6a51a3; --none: #56606a; --bounded: #00694f;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14181b; --sheet: #1b2024; --ink: #e6e8ea; --soft: #a4adb5; --rule: #363d43;
    --link: #6cb8ec; --shade: #22282d;
    --c0: #56b4e9; --c1: #f28e4b; --c2: #2fc39c; --c3: #e29bc4; --c4: #b5a3e6; --c5: #e2c14d;
    --ref: #8d979f;
    --leak: #ff9f6b; --hint: #e2c14d; --model: #b5a3e6; --none: #a4adb5; --bounded: #42cfa8;
  }
}
* { box-sizing: border-box; }
html { scroll-behavior: smooth; }
@media (prefers-reduced-motion: reduce) { html { scroll-behavior: auto; } }
body {
  margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  font-variant-numeric: tabular-nums; overflow-wrap: break-word;
}
a { color: var(--link); }
:focus-visible { outline: 3px solid var(--link); outline-offset: 2px; border-radius: 3px; }
.skip { position: absolute; left: -999px; }
.skip:focus { left: 1rem; top: .5rem; background: var(--sheet); padding: .4rem .8rem; z-index: 3; }
.hidden { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
header, main, footer { max-width: 1120px; margin: 0 auto; padding: 0 1.5rem; }
header { padding-top: 2.6rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0; letter-spacing: -.015em; font-weight: 650; }
h2 { font-size: 1.3rem; margin: 3rem 0 .3rem; letter-spacing: -.01em; font-weight: 650; }
h3 { font-size: 1.06rem; line-height: 1.35; margin: 0; font-weight: 620; }
h4 { font-size: .84rem; margin: 1.2rem 0 .3rem; }
.eyebrow { font-size: .78rem; letter-spacing: .06em; text-transform: uppercase; color: var(--soft);
  margin: 0 0 .35rem; }
.lede { color: var(--soft); margin: .5rem 0 0; max-width: 46rem; }
nav ul { list-style: none; display: flex; flex-wrap: wrap; gap: .3rem 1.3rem; padding: .8rem 0;
  margin: 1.4rem 0 0; border-block: 1px solid var(--rule); font-size: .92rem; }
.note, figcaption, .how, small { color: var(--soft); }
.note { font-size: .9rem; max-width: 46rem; }
.warn { border-left: 4px solid var(--leak); background: var(--shade); padding: .7rem 1rem; }
.cards { display: grid; gap: 1.1rem; margin-top: 1.1rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 25rem), 1fr)); }
.card { background: var(--sheet); border: 1px solid var(--rule); border-top: 4px solid var(--tone);
  border-radius: 8px; padding: 1rem 1.2rem 1.1rem; }
.leak { --tone: var(--leak); } .open { --tone: var(--leak); } .hint { --tone: var(--hint); }
.model { --tone: var(--model); } .none-shown { --tone: var(--none); }
.conditional { --tone: var(--hint); } .count { --tone: var(--none); }
.silent { --tone: var(--none); } .seen { --tone: var(--leak); } .unable { --tone: var(--hint); }
.bounded { --tone: var(--bounded); }
.badge { display: inline-flex; align-items: center; gap: .4em; font-size: .8rem; font-weight: 620;
  color: var(--tone); margin-bottom: .4rem; }
.badge svg { width: 1.05em; height: 1.05em; fill: none; stroke: currentColor; stroke-width: 2; }
.card dl { margin: .8rem 0 0; font-size: .92rem; }
.card dt { font-size: .78rem; color: var(--soft); margin-top: .7rem; }
.card dd { margin: .1rem 0 0; }
.card dd p { margin: 0 0 .4rem; }
.card ul { margin: .1rem 0 0; padding-left: 1.1rem; }
.figures { display: grid; gap: 1.4rem; margin-top: 1.1rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 26rem), 1fr)); }
figure { margin: 0; background: var(--sheet); border: 1px solid var(--rule); border-radius: 8px;
  padding: 1rem 1.1rem; min-width: 0; }
figcaption { font-size: .86rem; margin-top: .5rem; }
figure img { max-width: 100%; height: auto; image-rendering: pixelated; background: #fff; }
svg { display: block; width: 100%; height: auto; overflow: visible; }
svg text { font-size: 12.5px; fill: var(--soft); }
svg .label { fill: var(--ink); }
.chart { margin-top: .5rem; max-width: 34rem; }
.grid { stroke: var(--rule); stroke-width: 1; }
.axis { stroke: var(--soft); stroke-width: 1; fill: none; }
.c0 { --ink-of: var(--c0); } .c1 { --ink-of: var(--c1); } .c2 { --ink-of: var(--c2); }
.c3 { --ink-of: var(--c3); } .c4 { --ink-of: var(--c4); } .c5 { --ink-of: var(--c5); }
.ref { --ink-of: var(--ref); }
.line { fill: none; stroke: var(--ink-of); stroke-width: 2; stroke-linejoin: round; }
.line.ref { stroke-width: 1.6; }
.area { fill: var(--ink-of); fill-opacity: .16; stroke: none; }
.area.ref { fill-opacity: .26; }
.mark { fill: var(--sheet); stroke: var(--ink-of); stroke-width: 2; }
.hit { fill: transparent; }
.pt { outline: none; }
.quiet .mark { opacity: 0; }
.pt:hover .mark, .pt:focus .mark { opacity: 1; fill: var(--ink-of); }
.pt:focus-visible .hit { stroke: var(--link); stroke-width: 2; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .15rem 1.1rem; padding: 0;
  margin: .5rem 0 0; font-size: .84rem; }
.legend li { display: flex; align-items: center; gap: .45rem; }
.legend svg { width: 30px; height: 16px; flex: none; }
#tip { position: fixed; pointer-events: none; z-index: 2; background: var(--ink);
  color: var(--paper); font-size: .82rem; line-height: 1.35; padding: .35rem .6rem;
  border-radius: 5px; max-width: 19rem; }
details { margin-top: .9rem; }
summary { cursor: pointer; font-size: .92rem; color: var(--link); width: fit-content; }
figure details { font-size: .86rem; margin-top: .6rem; }
.scroll { overflow-x: auto; max-width: 100%; }
figure .scroll { max-height: 18rem; overflow-y: auto; }
table { border-collapse: collapse; font-size: .88rem; line-height: 1.4; width: 100%;
  margin-top: .6rem; }
caption { text-align: left; font-size: .86rem; color: var(--soft); padding-bottom: .4rem; }
th, td { text-align: left; vertical-align: top; padding: .45rem .8rem .45rem 0;
  border-bottom: 1px solid var(--rule); font-weight: 400; }
thead th { font-size: .78rem; color: var(--soft); vertical-align: bottom; white-space: nowrap; }
tbody th { font-weight: 600; }
th small, td small { display: block; font-weight: 400; font-size: .8rem; }
.findings .how { min-width: 17rem; } .findings td { font-size: .85rem; }
.findings .value { font-weight: 650; } .none { color: var(--soft); }
.tag { display: block; font-size: .76rem; color: var(--leak); font-weight: 600; }
.forest td { border-bottom: 0; padding-block: .28rem; } .forest tbody th { padding-top: 1.1rem; }
.forest svg text { font-size: 9px; }
.forest .wide { width: 44%; } .forest .how { font-size: .82rem; } .number {
  font-weight: 650; }
.compare th, .compare td { min-width: 9rem; } .compare tbody th { max-width: 22rem; }
.compare thead th { font-size: .95rem; }
.cards + h3 { margin-top: 1.6rem; }
.counts { list-style: none; display: flex; flex-wrap: wrap; gap: .2rem 1.6rem; padding: 0;
  margin: .8rem 0 0; }
data { white-space: nowrap; }
.plain { list-style: none; margin: 0; padding: 0; }
.keys dl { display: grid; grid-template-columns: auto 1fr; gap: .2rem .8rem; margin: 0;
  font-size: .84rem; color: var(--soft); }
.keys dt { font-weight: 600; color: var(--ink); } .keys dd { margin: 0; }
.pairs { width: auto; } .pairs th { font-weight: 400; color: var(--soft); }
pre { background: var(--shade); border: 1px solid var(--rule); border-radius: 6px;
  padding: .7rem .9rem; white-space: pre-wrap; overflow-wrap: anywhere; font-size: .86rem; }
code { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace;
  overflow-wrap: anywhere; font-size: .92em; }
.card code { white-space: nowrap; }
footer { margin-top: 3.5rem; padding-block: 1rem 2.5rem; border-top: 1px solid var(--rule);
  font-size: .86rem; color: var(--soft); }
@media (max-width: 640px) {
  header, main, footer { padding-inline: 1rem; }
  header { padding-top: 1.6rem; } h1 { font-size: 1.5rem; }
  .chart text { font-size: 16.5px; }
  figure { padding: .9rem .7rem; } .card { padding-inline: 1rem; }
  .forest thead { display: none; } .forest svg text { font-size: 11px; }
  .forest tr { display: block; padding: .35rem 0; border-bottom: 1px solid var(--rule); }
  .forest td, .forest th { display: block; border: 0; padding: .1rem 0; }
  .forest .wide { width: 100%; }
}
@media print {
  :root { color-scheme: light; --paper: #fff; --sheet: #fff; --ink: #000; --soft: #444;
    --rule: #bbb; --shade: #f4f4f4; --c0: #0072b2; --c1: #c2500a; --c2: #00795a;
    --c3: #a8497f; --c4: #6a51a3; --c5: #8a6d00; --ref: #666; --leak: #a63603; --hint: #7f5d00;
    --model: #6a51a3; --none: #444; --bounded: #00694f; }
  body { font-size: 10pt; } nav, .skip, #tip, summary, figure details { display: none; }
  header, main, footer { max-width: none; padding-inline: 0; }
  figure, tr { break-inside: avoid; } h2, h3, .eyebrow, .badge { break-after: avoid; }
  .card { box-decoration-break: clone; font-size: 9pt; } th small, td small { font-size: 6.8pt; }
  .cards, .figures { grid-template-columns: 1fr 1fr; }
  .scroll { overflow: visible; } table { font-size: 7.6pt; } .findings td { font-size: 7.2pt; }
  .findings .how { min-width: 0; } th, td { padding-right: .4rem; } a { color: inherit; }
}
"""
