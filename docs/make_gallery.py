"""Draws the pictures of `docs/gallery.md`, one for each example, from a run of that example.

`python docs/make_gallery.py` draws all of them in about one CPU minute, `python
docs/make_gallery.py own_loop` one. The figures are those of the report page. Everything random is
seeded, so that the same code gives the same pictures.
"""

from __future__ import annotations

import logging
import os
import random
import re
import runpy
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from markupsafe import Markup

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # for `tests`, which knows how to run a foreign app

from leakmeter.auditors.bounds.gaussian import epsilon_gaussian  # noqa: E402
from leakmeter.auditors.verdict.sentences import numbers_of  # noqa: E402
from leakmeter.auditors.verdict.verdict import Row  # noqa: E402
from leakmeter.auditors.wording import number_with_remark  # noqa: E402
from leakmeter.fl_app.report.curves import cosines, losses, tradeoffs  # noqa: E402
from leakmeter.fl_app.report.details import AXIS, bar, epsilons, title  # noqa: E402
from leakmeter.fl_app.report.figure import (  # noqa: E402  # noqa: E402
    REFERENCE,
    Axis,
    Figure,
    Scale,
    Series,
    axis_strip,
    layout,
)
from leakmeter.fl_app.report.read import Run, read_run  # noqa: E402
from leakmeter.fl_app.report.template import (  # noqa: E402
    STYLE,
    chart,
    render,
    strip,
    swatch,
)
from leakmeter.papers.gaussian import classical_sigma_unsafe_above_epsilon_1  # noqa: E402

FOLDER = Path(__file__).with_name("gallery")
EXAMPLES = ROOT / "examples"
MAX_BYTES = 60_000

_EDGE, _LINE = 20, 20
_COLORS = ("c0", "c1", "c2", "c3", "c4", "c5", "ref")
_SHAPES = """
svg { overflow: visible; } .plot path { vector-effect: non-scaling-stroke; }
text { font: 12px system-ui, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif; }
.title { font-size: 15px; font-weight: 600; } .who { font-weight: 600; }
.grid, .axis { stroke-width: 1; fill: none; }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.area { fill-opacity: .16; stroke: none; } .area.ref { fill-opacity: .26; }
.mark { stroke-width: 2; } .hit { fill: none; }
"""
_FILE = """
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {{ width }} {{ height }}"
 width="{{ width }}" height="{{ height }}"><title>{{ name }}</title><desc>{{ text }}</desc>
<style>{{ style }}</style>
<rect x="0.5" y="0.5" width="{{ width|float - 1 }}" height="{{ height|float - 1 }}" rx="8"
 class="sheet"/>{% for one in pieces %}{{ one }}{% endfor %}</svg>
"""
_READING = (
    "Triangle: a lower bound, 95 % confidence; the bar next to it is the most that it could show.",
    "Diamond: an estimate; the grey area has 90 % of what it says when nothing leaks.",
)


def main(names: Sequence[str]) -> int:
    """Draw the pictures of these examples, or of all."""
    if unknown := set(names) - set(PICTURES):
        known = ", ".join(PICTURES)
        print(f"NAME must be one of {known}, got {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    import flwr.app  # noqa: F401 - it sets the level of its log when it is imported

    logging.getLogger("flwr").setLevel(logging.ERROR)
    for name in names or PICTURES:
        _seed()
        text = PICTURES[name]()
        assert len(text.encode()) < MAX_BYTES, (name, len(text.encode()))
        (FOLDER / f"{name}.svg").write_text(text, encoding="utf-8")
        print(f"{FOLDER.name}/{name}.svg: {len(text.encode()):,} bytes")
    return 0


def _seed() -> None:
    """Seed what the examples draw from: they have no seeds of their own."""
    import torch

    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)


def audited(name: str, folder: str = "after", **changes: Any) -> Run:
    """Run an example in this process, with other settings, and return what its audit found."""
    from leakmeter.fl_app.engines.inline import run_inline
    from tests.foreign_app import configured, settings

    app = EXAMPLES / name / folder
    with tempfile.TemporaryDirectory() as home, configured(app, **changes) as (server, client):
        with patch.dict(os.environ, HOME=home):  # the examples write to ~/audits
            run_inline(server, client, settings(app)["config"]["min-nodes"])
        [report] = Path(home).glob("audits/*/report.json")
        return read_run(report)


def canaries(name: str, where: str, words: str) -> Callable[[], str]:
    """Return what draws the canaries' cosines in the final model or in all models."""

    def draw() -> str:
        [figure] = [f for f in cosines([audited(name)]) if f.title.endswith(where)]
        return chart_file(replace(figure, title=words))

    return draw


def secrets() -> str:
    """Draw how far the losses of planted secrets fell, with 16 copies of each."""
    run = audited("lora_transformer", "planted", copies=16)
    [figure] = [f for f in losses([run]) if f.title.endswith("in the models of all rounds")]
    return chart_file(replace(figure, title="lora_transformer: secrets, 16 times each"))


def tradeoff(name: str, words: str) -> Callable[[], str]:
    """Return what draws the trade-off curve of the likelihood ratio."""

    def draw() -> str:
        [figure] = tradeoffs([audited(name)])
        return chart_file(replace(figure, title=words))

    return draw


def bounds(name: str, words: str) -> Callable[[], str]:
    """Return what draws all ε of a run on one axis."""

    def draw() -> str:
        return forest_file(*epsilons(audited(name)), words)

    return draw


def local_dp() -> str:
    """Draw the ε that LocalDpMod delivers over the ε that it is asked for."""
    example = runpy.run_path(str(EXAMPLES / "local_dp_is_not_local_enough.py"))
    delta, asked = example["DELTA"], np.geomspace(0.5, 100, 40)
    given = [
        float(epsilon_gaussian(delta, 1 / classical_sigma_unsafe_above_epsilon_1(e, delta)))
        for e in asked
    ]
    tried = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
    shown = [example["audit"](asked=e).value for e in tried]
    point: dict[str, Any] = {"marker": "circle", "is_line": False, "kind": "lower_bound"}
    figure = Figure(
        "local-dp",
        "Flower's LocalDpMod: ε asked for and delivered",
        "Epsilon that the mod delivers over epsilon that it is asked for, both logarithmic. Above "
        "about 10 it delivers more than it is asked for; the audit shows that at 50 and 100.",
        "",
        Axis(f"ε asked for, at δ = {delta:g}", "log"),
        Axis("ε", "log"),
        (
            Series("as asked", asked.tolist(), asked.tolist(), REFERENCE, dash=1),
            Series("delivered, by the formula", asked.tolist(), given),
            Series("shown by an audit, 95 % confidence", tried, shown, 1, **point),
        ),
    )
    return chart_file(figure)


def few_directions() -> str:
    """Draw the ε that sums prove over the noise that fills the missing directions."""
    example = runpy.run_path(str(EXAMPLES / "sum_of_few_directions.py"))
    first, second = example["candidates"]()
    length, stds = float(np.linalg.norm(first - second)), np.geomspace(0.2, 10, 40)
    most = [float(epsilon_gaussian(example["DELTA"], length / s)) for s in stds]
    tried = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
    shown = [example["audit"](sigma=s).value for s in tried]
    point: dict[str, Any] = {"marker": "circle", "kind": "lower_bound"}
    figure = Figure(
        "few-directions",
        "A secure sum of four clients, with noise",
        "Epsilon that sums of four updates prove, over the noise that fills every direction. Both "
        "what they prove and what they can prove at most fall as the noise grows.",
        "",
        Axis("σ of the noise in every direction", "log"),
        Axis("ε", "shifted"),
        (
            Series("no sum can prove more", stds.tolist(), most, REFERENCE, dash=1),
            Series("shown by 300 sums, 95 % confidence", tried, shown, 1, **point),
        ),
    )
    return chart_file(figure)


PICTURES: dict[str, Callable[[], str]] = {
    "cnn_batchnorm": canaries(
        "cnn_batchnorm", "in the models of all rounds", "cnn_batchnorm: canaries in all models"
    ),
    "logistic_sklearn": bounds("logistic_sklearn", "logistic_sklearn: every ε of the run"),
    "lora_transformer": canaries(
        "lora_transformer", "in the final model", "lora_transformer: canaries in the final adapters"
    ),
    "lora_transformer_planted": secrets,
    "own_loop": tradeoff("own_loop", "own_loop: which of two updates was sent?"),
    "local_dp_is_not_local_enough": local_dp,
    "sum_of_few_directions": few_directions,
}


def chart_file(figure: Figure) -> str:
    """Return a figure as an SVG file, with a legend if it has several lines."""
    # Points without a marker are there for the keyboard, which a picture does not have.
    drawing = Markup(re.sub(r'<svg [^>]*class="pt \w+ quiet".*?</svg>', "", chart(figure)))
    made, top, wide = layout(figure), _EDGE + _LINE, 440.0
    below = top + made.height + _LINE / 2
    plot = wide - made.left - made.right
    head = _words(figure.title, _EDGE, _EDGE + 10, "title")
    pieces = [head, placed(drawing, _EDGE + made.left, top, plot, made.height)]
    key = figure.series if len(figure.series) > 1 else ()
    for i, one in enumerate(key):
        at = below + i * _LINE
        pieces += [
            placed(swatch(one), _EDGE, at, 30, 16),
            _words(one.label, _EDGE + 40, at + 12, "name"),
        ]
    height = below + len(key) * _LINE + _EDGE / 2
    return file(2 * _EDGE + wide, height, figure.title, figure.text, pieces)


def forest_file(rows: Sequence[Row], scale: Scale, words: str) -> str:
    """Return all ε of a run as an SVG file: attackers in words, numbers, and where they are."""
    left, wide, high, at = 420, 300, 26, _EDGE + 44.0
    pieces = [_words(words, _EDGE, _EDGE + 10, "title")]
    axis = strip(axis_strip(scale))
    pieces.append(placed(axis, left, at - high, wide, high))
    pieces.append(_words(AXIS, left - 84, at - 12, "soft"))
    for row in rows:
        for line in textwrap.wrap(title(row), 84):
            at += _LINE
            pieces.append(_words(line, _EDGE, at, "who"))
        for finding in numbers_of(row):
            at += high
            drawn = placed(bar(finding, scale), left, at - high / 2 - 4, wide, high)
            pieces += [_words(number_with_remark(finding), _EDGE, at), drawn]
        at += _LINE / 1.5
    for line in _READING:
        at += _LINE
        pieces.append(_words(line, _EDGE, at, "soft"))
    description = "Lower bounds, estimates and guarantees for each attacker on one axis."
    return file(left + wide + _EDGE, at + _EDGE, words, description, pieces)


def file(width: float, height: float, name: str, text: str, pieces: Sequence[Markup]) -> str:
    """Return an SVG file with a sheet of its own, so that it is legible on any page."""
    light, dark = palettes()
    style = f"{_SHAPES}{rules(light)}@media (prefers-color-scheme: dark) {{\n{rules(dark)}}}\n"
    values = {"width": f"{width:g}", "height": f"{height:g}", "name": name, "text": text}
    return f"{render(_FILE, style=Markup(style), pieces=pieces, **values)}\n"


def placed(drawing: Markup, x: float, y: float, width: float, height: float) -> Markup:
    """Return a drawing at a place inside another."""
    where = f'<svg x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}">'
    return Markup(where + str(drawing).partition(">")[2])


def _words(text: str, x: float, y: float, kind: str = "label") -> Markup:
    return Markup('<text x="{:g}" y="{:g}" class="{}">{}</text>').format(x, y, kind, text)


def palettes() -> Iterator[dict[str, str]]:
    """Yield the colours of the report page by name, light and dark.

    They are written out in every rule: few programs but browsers know variables in SVG.
    """
    light, rest = STYLE.split("@media screen and (prefers-color-scheme: dark)")
    for text in (light, rest.split("}")[0]):
        yield dict(re.findall(r"--(\w+): (#[0-9a-f]{6})", text))


def rules(color: Mapping[str, str]) -> str:
    """Return what has which colour."""
    own = (
        f".line.{c} {{ stroke: {color[c]}; }} .area.{c} {{ fill: {color[c]}; }} "
        f".{c} .mark {{ stroke: {color[c]}; }}\n"
        for c in _COLORS
    )
    return (
        f".sheet {{ fill: {color['sheet']}; stroke: {color['rule']}; }}\n"
        f"text {{ fill: {color['soft']}; }} "
        f".title, .who, .label, .name {{ fill: {color['ink']}; }}\n"
        f".grid {{ stroke: {color['rule']}; }} .axis {{ stroke: {color['soft']}; }} "
        f".mark {{ fill: {color['sheet']}; }}\n"
        f"{''.join(own)}"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
