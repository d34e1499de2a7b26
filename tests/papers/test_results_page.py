"""The page of all results: what it covers, and that it follows from the kept data."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from leakmeter.fl_app.cli.main import main
from leakmeter.fl_app.config.field import ConfigError
from leakmeter.papers.base import Comparison
from leakmeter.papers.published import PAPERS, items_of
from leakmeter.papers.results_page import covering, kept_results, write_page
from tests.papers.small import RESULTS, ROOT


def test_the_committed_page_follows_from_the_committed_results(tmp_path: Path) -> None:
    (tmp_path / "results").symlink_to(RESULTS)
    assert main(["reproduce", "--results", str(tmp_path / "results")]) == 0
    assert (tmp_path / "RESULTS.md").read_bytes() == (ROOT / "docs" / "RESULTS.md").read_bytes()


def test_every_published_table_and_figure_is_compared() -> None:
    results = kept_results(RESULTS)
    lacking = {
        (paper.key, item)
        for paper in PAPERS
        for item in paper.items
        if not covering(paper, item, results)
    }
    assert not lacking


def test_what_was_published_is_listed_in_full() -> None:
    listed = {paper.key: [*paper.items] for paper in PAPERS}
    assert listed["Ngo et al. 2024"] == [f"Fig. {i}" for i in range(1, 5)]
    assert listed["Elkordy et al. 2023"] == [f"Fig. {i}" for i in range(3, 18)]
    assert listed["Zhang and Psounis 2024"] == ["Fig. 4", "Fig. 5", "Table 1"]
    assert listed["Textbook chapter"] == ["worked example 1", "worked example 2"]
    tables, figures = [f"Table {i}" for i in range(1, 7)], [f"Fig. {i}" for i in range(1, 5)]
    assert sorted(listed["Andrew et al. 2024"]) == sorted(tables + figures)


def test_every_kept_comparison_belongs_to_a_paper_and_names_its_place() -> None:
    for kept in kept_results(RESULTS):
        for row in kept.comparisons:
            paper = next((p for p in PAPERS if row["source"].startswith(f"{p.key}, ")), None)
            assert paper is not None, row["source"]
            assert set(items_of(row["source"])) <= set(paper.items), row["source"]
            assert row["what"]
            assert row["paper"]
            assert row["ours"]


def test_links_of_the_page_lead_somewhere() -> None:
    import re

    page = (ROOT / "docs" / "RESULTS.md").read_text(encoding="utf-8")
    headings = {line.lstrip("# ") for line in page.splitlines() if line.startswith("#")}
    slugs = {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}
    targets = re.findall(r"\]\(([^)]+)\)", page)
    assert len(targets) > 50
    for target in targets:
        path, _, anchor = target.partition("#")
        if path.startswith("https:"):
            continue
        assert not path or (ROOT / "docs" / path).exists(), target
        assert path or anchor in slugs, target


def kept(folder: Path, name: str, *rows: Comparison) -> None:
    """Leave a table with comparisons."""
    (folder / name).mkdir(parents=True)
    data = {"title": f"About {name}", "comparisons": [asdict(row) for row in rows]}
    (folder / name / "table.json").write_text(json.dumps(data))


def test_rows_stand_under_their_papers_in_the_papers_order(tmp_path: Path) -> None:
    late = Comparison("Elkordy et al. 2023, Fig. 16", "noise", "much", "less")
    early = Comparison("Elkordy et al. 2023, Fig. 6 to 8", "batch", "log|Σ|", "same", "by chance")
    other = Comparison("Ngo et al. 2024, (8)", "bounds", "5 %", "6 %")
    kept(tmp_path / "results", "mi-dp", late, other)
    kept(tmp_path / "results", "mi-batch", early)
    kept(tmp_path / "results", "dlg-users")
    page = write_page(tmp_path / "results").read_text(encoding="utf-8")
    places = [
        page.index(text)
        for text in (
            *("## Ngo et al. 2024", "### mi-dp\n", "## Elkordy et al. 2023", "### mi-batch"),
            *("### mi-dp, Elkordy et al. 2023", "## Beyond the papers", "### dlg-users"),
        )
    ]
    assert places == sorted(places)
    assert "| Fig. 6 to 8 | batch | log\\|Σ\\| | same | by chance |" in page
    assert "| Fig. 16 | noise | much | less | they agree |" in page
    assert "| Fig. 7 | the same, FedAvg | [mi-batch](#mi-batch) | reduced" in page
    assert "| Ngo et al. 2024 | Fig. 2 |" in page
    assert page.count("no results yet") > 20


def test_a_figure_of_another_paper_in_the_same_source_is_not_taken_for_ones_own() -> None:
    results = kept_results(RESULTS)
    elkordy = next(paper for paper in PAPERS if paper.key == "Elkordy et al. 2023")
    # Its source is "Elkordy et al. 2023, Fig. 17; Zhang and Psounis 2024, Fig. 3".
    assert [kept.name for kept in covering(elkordy, "Fig. 17", results)] == ["span-counterexample"]
    assert "span-counterexample" not in {kept.name for kept in covering(elkordy, "Fig. 3", results)}


def test_the_first_sentence_counts_what_has_its_own_size(tmp_path: Path) -> None:
    kept(tmp_path / "results", "mi-dp", Comparison("Elkordy et al. 2023, Fig. 16", "a", "b", "c"))
    exact = Comparison("Ngo et al. 2024, Fig. 2", "a", "b", "c")
    kept(tmp_path / "results", "secagg-lrt-adult", exact)
    partly = Comparison("Ngo et al. 2024, Fig. 1", "a", "b", "c")
    kept(tmp_path / "results", "ldp-curves", partly)
    page = write_page(tmp_path / "results").read_text(encoding="utf-8")
    total = sum(len(paper.items) for paper in PAPERS)
    assert page.splitlines()[2] == (
        f"Of {total} published tables, figures and examples, 1 are computed again at their "
        "published size, 1 at sizes that are partly ours because the paper does not state them, "
        f"and 1 at a reduced size ({total - 3} not yet)."
    )


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    kept(tmp_path, "holidays")
    with pytest.raises(ConfigError, match=r"must be one of .*, got 'holidays'"):
        kept_results(tmp_path)


def test_a_folder_without_a_table_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "mi-dp").mkdir()
    with pytest.raises(ConfigError, match=r"mi-dp has no table.json: run `reproduce mi-dp --out"):
        kept_results(tmp_path)


@pytest.mark.parametrize(
    ("source", "items"),
    [
        ("Fig. 1 (a, b) and 3 to 5", ["Fig. 1", "Fig. 3", "Fig. 4", "Fig. 5"]),
        ("Figures 1-3, Tables 2/5", ["Fig. 1", "Fig. 2", "Fig. 3", "Table 2", "Table 5"]),
        ("Worked example 2", ["worked example 2"]),
        ("Table 1, row 6", ["Table 1"]),
        ("section 5.1", []),
    ],
)
def test_sources_name_tables_and_figures(source: str, items: list[str]) -> None:
    assert items_of(f"Somebody et al. 2024, {source}") == items
