"""Makes the documentation site: `python docs/make_site.py` writes it to `build/site`.

The pages in `docs/` are plain Markdown that can be read in the repository too. For the site this
script copies them and changes the copy: formulas become MathML, links that leave the site become
the path in the repository, notebooks become pages, and a real report takes the place of its
picture. Zensical builds the copy. The site needs neither a server nor a network: open
`build/site/index.html`.

The first build also does the default job and runs the notebooks, about two CPU minutes together.
What they leave is kept in `build/examples` for later builds; `--new` makes it again.
"""

from __future__ import annotations

import argparse
import html
import importlib.util
import json
import os
import posixpath
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
NOTEBOOKS = ("notebook", "notebook-foreign")
REPORT = "example/report.html"
_BUILDS, _RUNS = ("zensical", "mkdocstrings", "math_core"), ("nbclient", "ipykernel")
# Neither pages nor pictures: what makes the site, and the cells that RESULTS.md was computed from.
_LEFT_OUT = shutil.ignore_patterns("*.py", "*.toml", "*.jsonl", "__pycache__")
_ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "PYTHONPATH": str(ROOT),
}

# Code comes first, so that nothing in it is taken for a formula or a link.
_TOKEN = re.compile(
    r"(?:^ *\n)*^(?P<indent> *)```math\n(?P<display>.*?)^ *```\n(?:^ *\n)*"
    r"|^(?P<fence> *`{3,})[^\n]*\n.*?^(?P=fence)$"
    r"|(?P<ticks>`+)[^`]+(?P=ticks)"
    r"|(?<![\\$\w])\$(?=\S)(?P<inline>[^$\n]+?)(?<=\S)\$(?![\w$])"
    r"|(?<!!)\[(?P<text>(?:`[^`]*`|!\[[^\]]*\]\([^)]*\)|[^\[\]`])+)\]"
    r"\((?P<target>[^)#\s:]+)(?:#[^)]*)?\)",
    re.MULTILINE | re.DOTALL,
)
_LONG = 40  # shorter code in a sentence is not torn at a hyphen
_SPECIAL = re.compile(r"[*_\\`|\[\]~]")  # means something in Markdown
_FRAME = re.compile(r'srcdoc="([^"]*)"')
_PICTURE = re.compile(r"<!-- the site shows the report itself .*?-->\n[^\n]+\n")
_LIGHT = re.compile(r"(!\[[^\]]*\])\(report-light\.png\)")
_BOTH = r"\1(report-light.png#only-light)\1(report-dark.png#only-dark)"
_FRAMED = (
    f"[Open the report on its own]({REPORT})\n\n"
    f'<iframe src="{REPORT}" title="The example report" class="report"></iframe>\n'
)


def main(arguments: list[str] | None = None) -> int:
    """Make the site and say where it is."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "site", help="its folder")
    parser.add_argument(
        "--examples", type=Path, default=ROOT / "build" / "examples", help="what the runs leave"
    )
    parser.add_argument("--new", action="store_true", help="do the runs again")
    parser.add_argument("--no-runs", action="store_true", help="do none, and take what is there")
    asked = parser.parse_args(arguments)
    if asked.out.exists() and not (asked.out / "sitemap.xml").exists():
        parser.error(f"--out must be new or a site, got {asked.out}; name another folder")
    needed = _BUILDS if asked.no_runs else _BUILDS + _RUNS
    if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
        parser.error(f"not installed: {', '.join(missing)}; run: pip install -e '.[docs]'")
    if asked.new:
        shutil.rmtree(asked.examples / "default", ignore_errors=True)
        for name in NOTEBOOKS:
            (asked.examples / f"{name}.ipynb").unlink(missing_ok=True)
    if not asked.no_runs:
        make_report(asked.examples)
        make_outputs(asked.examples)
    with tempfile.TemporaryDirectory() as folder:
        stage(Path(folder), asked.examples)
        if code := build(Path(folder)):
            return code
        shutil.rmtree(asked.out, ignore_errors=True)
        shutil.copytree(Path(folder) / "site", asked.out)
    print(f"site: {asked.out / 'index.html'}")
    return 0


def make_report(folder: Path) -> None:
    """Do the default job, unless it has been done."""
    run = folder / "default"
    if (run / "report.html").exists():
        return
    print("the default job ...", flush=True)
    shutil.rmtree(run, ignore_errors=True)  # of a build that was interrupted
    folder.mkdir(parents=True, exist_ok=True)
    _run_sim("--out", run)


def make_outputs(folder: Path) -> None:
    """Run the notebooks, unless that has been done."""
    import nbclient
    import nbformat

    folder.mkdir(parents=True, exist_ok=True)
    for name in NOTEBOOKS:
        if (folder / f"{name}.ipynb").exists():
            continue
        print(f"{name}.ipynb ...", flush=True)
        notebook = nbformat.read(DOCS / f"{name}.ipynb", as_version=4)
        with tempfile.TemporaryDirectory() as inside:
            where = {"metadata": {"path": inside}}
            client = nbclient.NotebookClient(notebook, timeout=900, resources=where)
            client.execute(env={**os.environ, **_ENVIRONMENT})
        nbformat.write(notebook, folder / f"{name}.ipynb")


def _run_sim(*words: str | Path) -> None:
    """Run the program without its output; it must succeed."""
    environment, quiet = {**os.environ, **_ENVIRONMENT}, subprocess.DEVNULL
    program = (sys.executable, ROOT / "run_sim.py")
    subprocess.run((*program, *words), env=environment, check=True, stdout=quiet)


def stage(folder: Path, examples: Path) -> None:
    """Write the pages as the generator gets them, with its settings next to them."""
    docs = folder / "docs"
    shutil.copytree(DOCS, docs, ignore=_LEFT_OUT)
    for name in ("zensical.toml", "reexports.py"):
        shutil.copy(DOCS / "site" / name, folder)
    settings = (folder / "zensical.toml").read_text(encoding="utf-8")
    (folder / "zensical.toml").write_text(with_repository(settings), encoding="utf-8")
    has_report = (examples / "default" / "report.html").exists()
    if has_report:
        # Made again from the run's numbers, so that it is today's page whenever the run was.
        _run_sim("report", examples / "default")
        (docs / REPORT).parent.mkdir()
        shutil.copy(examples / "default" / "report.html", docs / REPORT)
    files = {path.relative_to(docs).as_posix() for path in docs.rglob("*") if path.is_file()}
    for page in docs.rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        name = page.relative_to(docs).as_posix()
        try:
            text = site_text(text, name, files)
        except Exception as error:  # such as a formula that cannot be converted
            error.add_note(f"in docs/{name}")
            raise
        text = _PICTURE.sub(_FRAMED, text) if has_report else text
        page.write_text(_LIGHT.sub(_BOTH, text), encoding="utf-8")
    for name in NOTEBOOKS:
        done = examples / f"{name}.ipynb"
        source = done if done.exists() else DOCS / f"{name}.ipynb"
        cells = json.loads(source.read_text(encoding="utf-8"))["cells"]
        page = "\n\n".join(notebook_text(cells, name, docs))
        (docs / f"{name}.md").write_text(page + "\n", encoding="utf-8")


def with_repository(settings: str, links: Iterable[str] | None = None) -> str:
    """Return the site's settings with a link to the repository that was installed from.

    Args:
        settings: Of the generator.
        links: Those of the installed package, as in its metadata; None looks them up.
    """
    found = metadata("leakmeter").get_all("Project-URL") if links is None else links
    by_name = dict(link.split(", ", 1) for link in found or ())
    if (home := by_name.get("Repository")) is None:
        return settings
    # Not as `repo_url`: readers' browsers would then fetch the number of stars.
    return settings.replace("\n]\n", f'\n  {{ "Repository" = {json.dumps(home)} }},\n]\n', 1)


def build(folder: Path) -> int:
    """Let Zensical build the site, and return its exit code; any warning is an error."""
    words = (sys.executable, "-m", "zensical", "build", "--strict", "-f", "zensical.toml")
    environment = {**os.environ, **_ENVIRONMENT}
    return subprocess.run(words, cwd=folder, env=environment, check=False).returncode


def site_text(text: str, page: str, files: set[str]) -> str:
    """Return the Markdown of a page for the site.

    Args:
        text: Markdown as in the repository.
        page: Path of the page in `docs/`.
        files: Paths of all files of the site, in the same way.
    """

    def replaced(token: re.Match[str]) -> str:
        if token["display"] is not None:
            made = mathml(token["display"], is_block=True)
            # In a list a blank line would end the item.
            return f"{token['indent']}{made}\n" if token["indent"] else f"\n{made}\n\n"
        if token["inline"] is not None:
            return mathml(token["inline"])
        if token["target"] is not None:
            return _link(token, page, files)
        if token["ticks"] and "-" in token[0] and len(token[0]) < _LONG:
            return f"{token[0]}{{.whole}}"
        return token[0]

    return _TOKEN.sub(replaced, text)


def mathml(tex: str, *, is_block: bool = False) -> str:
    """Return a formula as MathML in which Markdown finds nothing to change."""
    from math_core import LatexToMathML

    made = LatexToMathML().convert_with_local_state(tex.strip(), displaystyle=is_block)
    made = made.replace("&ApplyFunction;", "&#8289;")  # one that HTML's entities lack
    made = _SPECIAL.sub(lambda found: f"&#{ord(found[0])};", made)
    # Markdown takes `math` at the start of a line for a block; a span is none.
    return f'<span class="{"formula" if is_block else "math"}">{made}</span>'


def _link(link: re.Match[str], page: str, files: set[str]) -> str:
    """Return a link for the site: one that leaves it becomes the path in the repository."""
    text, target = link["text"], link["target"]
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), target))
    if path.removesuffix(".ipynb") in NOTEBOOKS:
        return f"[{text}]({target.removesuffix('.ipynb')}.md)"
    if path in files:
        return link[0]
    path = posixpath.normpath(posixpath.join("docs", path))
    return f"`{path}`" if text.strip("`") in path else f"{text} (`{path}`)"


def notebook_text(cells: list[dict[str, Any]], name: str, docs: Path) -> Iterator[str]:
    """Yield the Markdown of a notebook: its text, its code, and what the code printed or showed."""
    for number, cell in enumerate(cells):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            yield source
            continue
        yield f"```python\n{source}\n```"
        printed = [o for o in cell["outputs"] if o.get("name") == "stdout"]
        text = "".join("".join(output["text"]) for output in printed).rstrip()
        if text:
            yield f"```text\n{text}\n```"
        for output in cell["outputs"]:
            yield from _shown(output.get("data", {}), docs / f"{name}-{number}.html")
    yield f"[The notebook as a file]({name}.ipynb)"


def _shown(data: Mapping[str, Any], page: Path) -> Iterator[str]:
    """Yield the Markdown of what a cell shows; a page in a frame becomes the file `page`."""
    shown = "".join(data.get("text/html", ""))
    if source := _FRAME.search(shown):
        page.write_text(html.unescape(source[1]), encoding="utf-8")
        yield _FRAME.sub(f'class="report" src="{page.name}"', shown)
    elif text := "".join(data.get("text/plain", "")):
        yield f"```text\n{text}\n```"


if __name__ == "__main__":
    sys.exit(main())
