"""The page of all results: what was published beside what came out, from the kept tables alone."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from leakmeter.auditors.run_log import write_atomically
from leakmeter.fl_app.config.field import ConfigError, unknown_name
from leakmeter.papers.base import CELLS, table_line
from leakmeter.papers.published import PAPERS, Paper, items_of
from leakmeter.papers.registry import EXPERIMENTS, duration

_PAGE = "RESULTS.md"
_PARTLY = "as published where stated"  # how sizes begin that a paper does not state in full
_INTRO = """# Results

{counts}.
Our results are next to the published ones. The first table lists the size of each experiment and
what is reduced.

Every line follows from the data in `{folder}/NAME/`. `cells.jsonl` contains what was computed;
`table.csv`, `table.json` and `table.md` contain the table.
`reproduce NAME --scale paper --out {folder}/NAME` makes the table from its cells again and computes
nothing. `python run_sim.py reproduce --results` writes this page, and a test compares the page with
the data.

Seeds are in the code, and nothing was tuned to a published number. The table's notes name every
case, target or comparison that was chosen after a first look. Times are those of one processor
core. Where a paper has a plot without numbers, we put its claim into words.

ε ≥ is a lower bound with its confidence; ε̂ and ε_est are estimates, not bounds. Bits are log₂.
They come from a Gaussian model, which is an approximation, unless MINE is named.
[Reading the numbers](reading-the-numbers.md) explains these kinds.
"""


@dataclass(frozen=True)
class Kept:
    """The kept results of an experiment, as far as the page needs them."""

    name: str
    title: str
    comparisons: tuple[Mapping[str, str], ...]
    figures: tuple[str, ...]

    @property
    def size(self) -> str:
        """Whether the experiment has the published size, or what is reduced."""
        return EXPERIMENTS[self.name].size

    def of(self, paper: Paper) -> list[Mapping[str, str]]:
        """Return what is compared with one paper, in the order of its tables and figures."""
        own = [row for row in self.comparisons if row["source"].startswith(paper.key)]
        return sorted(own, key=lambda row: _place(paper, row["source"]))

    def heading(self, paper: Paper) -> str:
        """Return the name, with the paper's where it is not the first one that is compared."""
        first = next(paper for paper in PAPERS if self.of(paper))
        return self.name if paper == first else f"{self.name}, {paper.key}"


def write_page(folder: Path) -> Path:
    """Write the page beside a folder of results and return where it is."""
    page = folder.parent / _PAGE
    write_atomically(page, results_page(kept_results(folder), folder.name))
    return page


def kept_results(folder: Path) -> list[Kept]:
    """Return the results in a folder, one in each of its folders.

    Raises:
        ConfigError: There is no such folder, or it holds something else.
    """
    if not folder.is_dir():
        raise ConfigError(f"results must be a folder of results, got {str(folder)!r}")
    return [_kept(path) for path in sorted(folder.iterdir()) if path.is_dir()]


def _kept(path: Path) -> Kept:
    if path.name not in EXPERIMENTS:
        raise unknown_name(f"folders of {path.parent}", path.name, EXPERIMENTS)
    if not (path / "table.json").is_file():
        raise ConfigError(f"{path} has no table.json: run `reproduce {path.name} --out {path}`")
    data = json.loads((path / "table.json").read_text(encoding="utf-8"))
    figures = sorted(file.name for file in path.iterdir() if file.suffix in (".svg", ".png"))
    return Kept(path.name, data["title"], tuple(data["comparisons"]), tuple(figures))


def results_page(results: Sequence[Kept], folder: str) -> str:
    """Return the page; links go to `folder` beside it."""
    lines = [_INTRO.format(folder=folder, counts=_counts(results)), *_index(results), ""]
    for paper in PAPERS:
        lines += _section(paper, results, folder)
    rest = [kept for kept in results if not any(map(kept.of, PAPERS))]
    if rest:
        lines += ["## Beyond the papers", ""]
    for kept in rest:
        lines += _block(kept.name, kept, [], folder)
    return "\n".join(lines)


def covering(paper: Paper, item: str, results: Sequence[Kept]) -> list[Kept]:
    """Return the experiments that are compared with a table or figure."""
    return [k for k in results if any(item in _items(paper, row["source"]) for row in k.of(paper))]


def _counts(results: Sequence[Kept]) -> str:
    covered = [covering(paper, item, results) for paper in PAPERS for item in paper.items]
    whole = sum(any(k.size.startswith("as published") for k in own) for own in covered)
    partly = sum(any(k.size.startswith(_PARTLY) for k in own) for own in covered)
    missing = sum(not own for own in covered)
    words = (
        f"Of {len(covered)} published tables, figures and examples, {whole - partly} are computed "
    )
    words += f"again at their published size, {partly} at sizes that are partly ours because the "
    words += f"paper does not state them, and {len(covered) - whole - missing} at a reduced size"
    return words + f" ({missing} not yet)" * bool(missing)


def _index(results: Sequence[Kept]) -> list[str]:
    """Return every table and figure with where to find it on the page."""
    lines = ["| paper | item | what | computed again by | size |", "|---|---|---|---|---|"]
    for paper in PAPERS:
        for item, what in paper.items.items():
            own = covering(paper, item, results)
            links = ", ".join(f"[{k.name}](#{_slug(k.heading(paper))})" for k in own)
            sizes = "; ".join(dict.fromkeys(k.size for k in own))
            lines.append(table_line([paper.key, item, what, links or "no results yet", sizes]))
    return lines


def _section(paper: Paper, results: Sequence[Kept], folder: str) -> list[str]:
    where = f" ({paper.where})" if paper.where else ""
    lines = [f"## {paper.key}", "", f"*{paper.title}*{where}.", ""]
    if paper.instead:
        lines += [paper.instead, ""]
    own = [kept for kept in results if kept.of(paper)]
    for kept in sorted(own, key=lambda kept: _place(paper, kept.of(paper)[0]["source"])):
        lines += _block(kept.heading(paper), kept, kept.of(paper), folder)
    if paper.left_out:
        lines += ["Not computed again:", ""]
        lines += [*(f"- {item}: {why}." for item, why in paper.left_out.items()), ""]
    return lines


def _block(heading: str, kept: Kept, rows: Sequence[Mapping[str, str]], folder: str) -> list[str]:
    own = f"{folder}/{kept.name}"
    links = [f"[table]({own}/table.md)", f"[CSV]({own}/table.csv)", f"[data]({own}/{CELLS})"]
    links += [f"[{name}]({own}/{name})" for name in kept.figures if name.endswith(".png")]
    time = duration(EXPERIMENTS[kept.name].paper)
    command = f"`python run_sim.py reproduce {kept.name} --scale paper`"
    lines = [f"### {heading}", "", kept.title + "." * (kept.title[-1:] not in "?!"), ""]
    lines += [f"{command}, about {time}: {', '.join(links)}.", "", f"Size: {kept.size}."]
    if rows:
        columns = ["published", "what", "paper", "ours", "why they differ"]
        lines += ["", table_line(columns), "|---" * len(columns) + "|"]
    for row in rows:
        where, why = row["source"].partition(", ")[2], row["why"] or "they agree"
        lines.append(table_line([where, row["what"], row["paper"], row["ours"], why]))
    for name in kept.figures:
        if name.endswith(".svg"):
            lines += ["", f"![{kept.title}]({own}/{name})"]
    return [*lines, ""]


def _slug(heading: str) -> str:
    """Return what a heading's link is called."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _items(paper: Paper, source: str) -> list[str]:
    """Return the tables and figures of one paper in a source that may name several papers."""
    own = (part for part in source.split("; ") if part.startswith(paper.key))
    return [item for part in own for item in items_of(part)]


def _place(paper: Paper, source: str) -> tuple[int, str]:
    """Return where a source stands in its paper; what is no table or figure comes last."""
    order = list(paper.items)
    places = [order.index(item) for item in _items(paper, source) if item in order]
    return min(places, default=len(order)), source
