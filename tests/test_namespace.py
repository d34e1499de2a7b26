"""One importable name: what an installation offers, what a checkout offers, and nothing twice."""

from __future__ import annotations

import ast
import json
import pkgutil
import shutil
import sys
from importlib import import_module
from pathlib import Path

import pytest

from tests.helpers.installed import checkout
from tests.helpers.numbers import first_fast
from tests.helpers.processes import bare_python, environment, run, run_python, site_packages
from tests.helpers.project import PAPERS, PROJECT, ROOMS, ROOT, modules

# Ends a snippet: no file of this project has been loaded as two modules.
ONCE = """
import sys
loaded = {}
for module in {id(m): m for m in sys.modules.values()}.values():
    file = getattr(module, "__file__", None)
    if file and module.__name__ != "__main__":
        loaded.setdefault(file, []).append(module.__name__)
twice = {f: names for f, names in loaded.items() if "leakmeter" in "".join(names)}
assert twice and not [names for names in twice.values() if len(names) > 1], twice
for room in ("auditors", "clients", "strategies", "fl_app"):
    assert sys.modules.get(room) in (None, sys.modules.get("leakmeter." + room)), room
"""

SNIPPETS = {
    "bare name first": """
        import auditors.bounds, clients, strategies, fl_app.config
        import leakmeter.auditors.bounds, leakmeter.clients, leakmeter.strategies
        import leakmeter.fl_app.config
        assert auditors is leakmeter.auditors and clients is leakmeter.clients
        assert strategies is leakmeter.strategies and fl_app is leakmeter.fl_app
        assert auditors.bounds is leakmeter.auditors.bounds
        assert fl_app.config is leakmeter.fl_app.config
    """,
    "full name first": """
        import leakmeter.auditors.bounds, leakmeter.fl_app.config
        import auditors.bounds, fl_app.config
        assert auditors is leakmeter.auditors
        assert auditors.bounds is leakmeter.auditors.bounds
        assert fl_app.config is leakmeter.fl_app.config
    """,
    "deep modules": """
        import auditors.bounds.lower_bound
        from leakmeter.auditors.bounds import lower_bound
        from clients.secure_sum.keys import agree
        import leakmeter.clients.secure_sum.keys as keys
        import strategies.chosen
        import leakmeter.strategies.chosen as participation
        assert auditors.bounds.lower_bound is lower_bound and keys.agree is agree
        assert strategies.chosen is participation
    """,
    "from a room": """
        from auditors import bounds, finding
        from leakmeter.auditors import bounds as other
        assert bounds is other
        from auditors import Finding
        assert Finding is finding.Finding
    """,
    "import_module": """
        from importlib import import_module
        one = import_module("auditors.rng")
        assert one is import_module("leakmeter.auditors.rng") is import_module(".rng", "auditors")
        assert import_module("strategies") is import_module("leakmeter.strategies")
    """,
    "a spec stays its module's own": """
        import auditors.rng, importlib.util
        assert auditors.rng.__spec__.name == auditors.rng.__name__ == "leakmeter.auditors.rng"
        assert auditors.rng.__package__ == "leakmeter.auditors"
        assert auditors.__spec__.name == "leakmeter.auditors"
        assert importlib.util.find_spec("auditors.rng").origin == auditors.rng.__file__
        assert importlib.util.find_spec("auditors.nothing") is None
    """,
    "pickle": """
        import pickle
        from strategies.chosen import FixedSize
        sent = pickle.dumps(FixedSize(3))
        assert b"leakmeter.strategies.chosen" in sent
        assert pickle.loads(sent) == FixedSize(3)
    """,
    "reload": """
        import importlib, auditors.rng
        from leakmeter.auditors import rng
        assert importlib.reload(auditors.rng) is rng is auditors.rng
        assert importlib.reload(auditors) is sys.modules["leakmeter.auditors"]
        import leakmeter
        assert importlib.reload(leakmeter) is leakmeter
        import auditors.finding
        assert auditors.finding is sys.modules["leakmeter.auditors.finding"]
    """,
    "what fails leaves nothing behind": """
        known = {name for name in sys.modules}
        for name in ("auditors.nothing", "auditors.bounds.nothing", "leakmeter.auditors.nothing"):
            try:
                __import__(name)
            except ModuleNotFoundError as error:
                assert error.name == name, error
            else:
                raise AssertionError(name)
            assert name not in sys.modules and "leakmeter." + name not in sys.modules
        import auditors.rng
        assert not hasattr(auditors, "nothing")
    """,
    "what raises leaves nothing behind, and works later": """
        kept = {n: sys.modules.pop(n) for n in list(sys.modules) if n.split(".")[0] == "scipy"}
        sys.modules["scipy"] = None  # as if it were not installed
        try:
            import auditors.bounds.lower_bound
        except ImportError:
            pass
        else:
            raise AssertionError("imported")
        assert not [n for n in sys.modules if n.endswith("auditors.bounds.lower_bound")]
        del sys.modules["scipy"]
        sys.modules.update(kept)
        import auditors.bounds.lower_bound
        import leakmeter.auditors.bounds.lower_bound as lower_bound
        assert auditors.bounds.lower_bound is lower_bound
    """,
    "threads": """
        import leakmeter, threading
        from importlib import import_module
        names = ["auditors.rng", "auditors.finding", "strategies.chosen", "fl_app.config"]
        names += ["leakmeter." + name for name in names]
        found, gate = [], threading.Barrier(len(names))
        def load(name):
            gate.wait()
            found.append((name, import_module(name)))
        threads = [threading.Thread(target=load, args=(name,)) for name in names]
        [thread.start() for thread in threads]
        [thread.join() for thread in threads]
        assert len(found) == len(names)
        for name, module in found:
            assert module.__name__ == "leakmeter." + name.removeprefix("leakmeter.")
            assert module.__spec__.name == module.__name__
            assert sys.modules[name] is module
    """,
    "a foreign room that comes first later": """
        import auditors.rng, pathlib, tempfile
        folder = tempfile.mkdtemp()
        (pathlib.Path(folder) / "auditors").mkdir()
        (pathlib.Path(folder) / "auditors" / "rng.py").write_text("FOREIGN = True")
        (pathlib.Path(folder) / "auditors" / "__init__.py").touch()
        kept = {n: sys.modules.pop(n) for n in list(sys.modules) if n.split(".")[0] == "auditors"}
        sys.path.insert(0, folder)
        import auditors.rng
        assert auditors.rng.FOREIGN and sys.modules["leakmeter.auditors.rng"] is not auditors.rng
        sys.path.remove(folder)
        sys.modules.update(kept)
    """,
    "a foreign folder below a room": """
        import leakmeter, pathlib, tempfile
        folder = pathlib.Path(tempfile.mkdtemp())
        (folder / "clients" / "deep").mkdir(parents=True)
        (folder / "clients" / "deep" / "mine.py").write_text("FOREIGN = True")
        (folder / "clients" / "__init__.py").touch()
        sys.path.insert(0, str(folder))
        import clients.deep.mine
        assert clients.deep.mine.FOREIGN
        for name in [n for n in sys.modules if n.split(".")[0] == "clients"]:
            del sys.modules[name]
        import leakmeter.clients
    """,
    "only the rooms": """
        import importlib.util, leakmeter
        for name in ("leakmeter", "tests", "docs", "benchmarks", "run_sim", "hatch_build"):
            assert importlib.util.find_spec("leakmeter." + name) is None, name
        import leakmeter.auditors
    """,
    "rooms without an import": """
        import leakmeter
        assert leakmeter.strategies.Masked.__name__ == "Masked"
        assert leakmeter.auditors.bounds and leakmeter.auditors.noise
        assert leakmeter.clients.mask_mod and leakmeter.Audited and leakmeter.auditors.rng
        assert {"Audited", "Masked", "mask_mod", "auditors", "fl_app"} <= set(dir(leakmeter))
        try:
            leakmeter.nothing
        except AttributeError as error:
            assert "module 'leakmeter' has no attribute 'nothing'" in str(error)
    """,
}


def snippet(name: str) -> str:
    """Return a snippet as a program that ends with the check of double modules."""
    lines = [line[8:] for line in SNIPPETS[name].splitlines()]
    return "\n".join(["import sys", *lines, ONCE])


# Runs each program in a copy of a process that has nothing of ours and what all of them need.
COPIES = """
import json, os, sys, traceback
import numpy, scipy.stats
for name, program in json.load(sys.stdin).items():
    if (child := os.fork()) == 0:
        try:
            exec(program, {"__name__": "__main__"})
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        print("failed:", name)
print("all have run")
"""


def test_in_a_checkout_a_bare_name_is_the_same_module() -> None:
    programs = {name: snippet(name) for name in SNIPPETS}
    done = run(
        *(sys.executable, "-W", "error::ImportWarning", "-c", COPIES),
        given=json.dumps(programs),
    )
    assert done.stdout.endswith("all have run\n"), done.stderr
    assert "failed:" not in done.stdout, done.stdout + done.stderr


def test_a_module_runs_by_its_bare_name() -> None:
    run_python("-m", "auditors.checks")
    done = run(sys.executable, "-m", "auditors")
    assert "'auditors' is a package and cannot be directly executed" in done.stderr


def test_the_check_for_double_modules_finds_them() -> None:
    planted = "import leakmeter.auditors.rng, importlib.util as u, sys\n"
    planted += "spec = u.spec_from_file_location('twin', leakmeter.auditors.rng.__file__)\n"
    planted += "sys.modules['twin'] = u.module_from_spec(spec)\n"
    done = run(sys.executable, "-c", planted + ONCE)
    assert "AssertionError" in done.stderr


@pytest.mark.parametrize("links", first_fast(1, ["files", "none"]))
def test_a_clone_without_links_and_flowers_bundle_find_the_rooms(
    links: str, tmp_path: Path
) -> None:
    (tmp_path / "leakmeter").mkdir()
    for name in ("__init__.py", "_rooms.py"):
        shutil.copy(ROOT / "leakmeter" / name, tmp_path / "leakmeter")
    for room in ROOMS:
        shutil.copytree(ROOT / room, tmp_path / room, ignore=shutil.ignore_patterns("__pycache__"))
        if links == "files":  # what git writes where it cannot make links
            (tmp_path / "leakmeter" / room).write_text(f"../{room}")
    run_python("-c", snippet("only the rooms") + snippet("deep modules"), cwd=tmp_path)


def test_a_walk_meets_every_module_once() -> None:
    import leakmeter

    met = [module.name for module in pkgutil.walk_packages(leakmeter.__path__, "leakmeter.")]
    own = ("leakmeter._rooms", "leakmeter.loggers")
    assert sorted(met) == sorted([*modules(*ROOMS, PAPERS), *own])


@pytest.mark.parametrize("room", ROOMS)
def test_a_front_page_holds_only_tables(room: str) -> None:
    # Under the bare name it runs once more and is thrown away, so it must define nothing itself.
    tree = ast.parse((ROOT / room / "__init__.py").read_text())
    assert not [n for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.ClassDef))]
    files = {path.stem for path in (ROOT / room).iterdir()}
    public = getattr(import_module(f"leakmeter.{room}"), "__all__", [])
    assert not files & set(public)  # the module would take the place of the name


def test_the_rooms_are_named_alike_everywhere() -> None:
    from hatch_build import ROOMS as SHIPPED
    from leakmeter._rooms import ROOMS as FOUND

    assert set(FOUND) == set(SHIPPED) == set(ROOMS)
    for room in ROOMS:
        link = ROOT / "leakmeter" / room
        assert not link.is_symlink() or link.resolve() == ROOT / room
    link = ROOT / "leakmeter/papers"
    assert not link.is_symlink() or link.resolve() == ROOT / PAPERS


def test_the_papers_of_a_checkout_are_found_from_any_folder(tmp_path: Path) -> None:
    code = "import leakmeter.papers.registry as found, sys; print(found.__file__)\n"
    code += "assert 'papers' not in sys.modules and 'examples' not in sys.modules"
    printed = run_python("-c", code, cwd=tmp_path, env=environment(PYTHONPATH=str(ROOT)))
    assert Path(printed.strip()) == ROOT / PAPERS / "registry.py"


@pytest.mark.slow
def test_an_installation_says_that_reproducing_needs_a_clone(site: Path, tmp_path: Path) -> None:
    program = "from leakmeter.fl_app.cli.main import main; raise SystemExit(main())"
    env = environment(PYTHONPATH=str(site))
    for words in (("--list",), ("one-shot-table1",), ("--results",)):
        done = run(sys.executable, "-c", program, "reproduce", *words, cwd=tmp_path, env=env)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.startswith("error: reproduce needs a clone of the repository")
        assert done.stderr.count("\n") == 1
    script = run(sys.executable, "-c", program, "completion", "bash", cwd=tmp_path, env=env)
    assert script.returncode == 0, script.stderr
    assert "reproduce:--scale" in script.stdout
    assert "one-shot-table1" not in script.stdout


# Run in another folder: all that a user may import is there, and the bare names are not.
INSTALLED = f"""
import importlib.util
from leakmeter import Audited, OneShotCanaries, canary_mod
import leakmeter
assert leakmeter.strategies.Masked and leakmeter.clients.mask_mod
assert leakmeter.__version__ == {PROJECT["project"]["version"]!r}
where = leakmeter.__file__
for name in ("auditors", "clients", "strategies", "fl_app", "run_sim", "hatch_build"):
    assert importlib.util.find_spec(name) is None, name
for name in ("tests", "docs", "benchmarks"):  # others may have installed such a name
    found = importlib.util.find_spec(name)
    places = [*(found.submodule_search_locations or ()), found.origin or ""] if found else []
    assert not [place for place in places if "OURS" in place], places
print(where)
"""


def test_a_wheel_offers_one_name(site: Path, tmp_path: Path) -> None:
    code = INSTALLED.replace("OURS", str(site)) + ONCE
    printed = run_python("-c", code, cwd=tmp_path, env=environment(PYTHONPATH=str(site)))
    assert Path(printed.strip()) == site / "leakmeter/__init__.py"


def install(python: Path, *what: str | Path) -> None:
    """Install this project into another environment; nothing is downloaded."""
    words = ("--no-deps", "--no-index", "--no-build-isolation", "--disable-pip-version-check")
    run_python("-m", "pip", "--python", python, "install", *words, *what)


def check_the_console_script(python: Path, cwd: Path) -> None:
    """The program answers, and says which release it is."""
    script = python.parent / "leakmeter"
    helped = run(script, "--help", cwd=cwd)
    assert helped.returncode == 0, helped.stderr
    assert "--dataset" in helped.stdout
    version = run(script, "--version", cwd=cwd)
    assert version.stdout.strip() == f"leakmeter {PROJECT['project']['version']}", version.stderr


@pytest.mark.launch
def test_a_wheel_in_a_clean_environment(wheel: Path, tmp_path: Path) -> None:
    python = bare_python(tmp_path / "venv")
    install(python, wheel)
    own = site_packages(python)
    assert {p.name for p in own.iterdir() if "leakmeter" in p.name or p.name in ROOMS} == {
        "leakmeter",
        f"leakmeter-{PROJECT['project']['version']}.dist-info",
    }
    done = run(python, "-c", INSTALLED.replace("OURS", str(own)) + ONCE, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()) == own / "leakmeter/__init__.py"
    check_the_console_script(python, tmp_path)


@pytest.mark.launch
def test_an_editable_installation_offers_one_name(tmp_path: Path) -> None:
    # Named like the package, and Python starts beside it: a folder without a file does not win.
    copy, python = checkout(tmp_path / "leakmeter"), bare_python(tmp_path / "venv")
    install(python, "-e", copy)
    done = run(python, "-c", INSTALLED.replace("OURS", str(copy)), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = run(python, "-c", INSTALLED.replace("OURS", str(copy)) + ONCE, cwd=elsewhere)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()) == copy / "leakmeter/__init__.py"
    check_the_console_script(python, elsewhere)
    # Inside the checkout the script and the bare names work.
    assert run(python, "run_sim.py", "--help", cwd=copy).returncode == 0
    assert run(python, "-c", snippet("bare name first"), cwd=copy).returncode == 0


FOREIGN = {
    "auditors/rules.py": "LARGEST = 0.5\n",
    "clients/client.py": """
from importlib.util import find_spec
import numpy as np
from flwr.app import Array, ArrayRecord, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from auditors.rules import LARGEST

mods = []
if find_spec("leakmeter"):
    from leakmeter import canary_mod
    mods = [canary_mod]
app = ClientApp(mods=mods)

@app.train()
def train(message, context):
    rng = np.random.default_rng(context.node_config["partition-id"])
    sent = message.content["arrays"]["w"].numpy()
    step = np.clip(rng.standard_normal(sent.shape), -LARGEST, LARGEST)
    arrays = ArrayRecord({"w": Array(sent + step)})
    metrics = MetricRecord({"num-examples": 10})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
""",
    "strategies/server.py": """
from importlib.util import find_spec
import numpy as np
from flwr.app import Array, ArrayRecord
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import FedAvg

class Own(FedAvg):
    pass

def strategy():
    own = Own(min_train_nodes=6, min_available_nodes=6, fraction_evaluate=0.0)
    if not find_spec("leakmeter"):
        return own
    from leakmeter import Audited, OneShotCanaries
    return Audited(own, [OneShotCanaries(seats=2)])

app = ServerApp()

@app.main()
def main(grid, context):
    chosen = strategy()
    model = ArrayRecord({"w": Array(np.zeros(200))})
    result = chosen.start(grid, model, num_rounds=6)
    assert len(result.train_metrics_clientapp) == 6
    found = len(chosen.findings()) if find_spec("leakmeter") else 0
    print("trained with", type(chosen).__name__, found)
""",
    "pyproject.toml": """
[tool.flwr.app.components]
serverapp = "strategies.server:app"
clientapp = "clients.client:app"
[tool.flwr.app.config]
min-nodes = 6
""",
}
# The project's own modules have their names, and with ours loaded beside them still do.
THEIRS = """
import os, auditors.rules, clients.client, strategies.server
if AFTER:
    from leakmeter.fl_app.engines.inline import run_inline
    run_inline(strategies.server.app, clients.client.app, 6)
else:
    print("trained with", type(strategies.server.strategy()).__name__)
import auditors as again
for module in (auditors.rules, clients.client, strategies.server):
    assert module.__file__.startswith(os.getcwd()), module
assert again is auditors and auditors.rules.LARGEST == 0.5
"""


@pytest.fixture(params=[pytest.param("packages", marks=pytest.mark.slow), "plain folders"])
def foreign(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A Flower project with folders of the same names as our rooms."""
    folder = tmp_path / "foreign"
    for name, text in FOREIGN.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    if request.param == "packages":
        for room in ("auditors", "clients", "strategies"):
            (folder / room / "__init__.py").touch()
    return folder


@pytest.mark.slow
def test_a_foreign_project_keeps_its_names_before_and_after(
    foreign: Path, site: Path, tmp_path: Path
) -> None:
    python = bare_python(tmp_path / "venv")
    before = run(python, "-c", f"AFTER = False\n{THEIRS}", cwd=foreign)
    assert "trained with Own" in before.stdout, before.stderr
    with_ours = environment(PYTHONPATH=str(site))
    after = run(python, "-c", f"AFTER = True\n{THEIRS}{CHECK}", cwd=foreign, env=with_ours)
    assert "trained with Audited" in after.stdout, after.stderr
    assert not after.stdout.rstrip().endswith("Audited 0")
    assert after.returncode == 0, after.stderr


# Ours are loaded, too, each once, and under the full name only.
CHECK = ONCE.partition("for room in")[0]


@pytest.mark.launch
@pytest.mark.parametrize("when", ["before", "after"])
def test_flowers_simulation_runs_a_foreign_project_with_our_names(
    foreign: Path, site: Path, tmp_path: Path, when: str
) -> None:
    python = bare_python(tmp_path / "venv")
    paths = f"{foreign}:{site}" if when == "after" else str(foreign)
    env = environment(PYTHONPATH=paths, RAY_ADDRESS="local")
    # -P: the folder of the script, where our tests are, is no place for a project to look in.
    done = run(python, "-P", ROOT / "tests/foreign_app.py", foreign, cwd=tmp_path, env=env)
    assert done.returncode == 0, done.stderr
    expected = "trained with Own" if when == "before" else "trained with Audited"
    assert expected in done.stdout + done.stderr
