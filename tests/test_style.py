"""Style as a test: budgets, names and words. Every complaint names a file and a line.

A rule of modules is asked about each module, and all of them in one pass. Other rules look at files.
"""

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tools import prose
from tools.syntax import ROOT, Module, files, modules, place

SOURCE = ROOT / "src" / "roost"
PLACEMENT = SOURCE / "core" / "placement"

FUNCTION_LINES_MAX = 70  # one screen
FILE_LINES_MAX = 400  # one sitting
RULE_LINES_MAX = 80  # a filter or a scorer: a mask or a vector, and a sentence
FOLDER_MODULES_MAX = 20  # what a newcomer reads before opening one
PORT_METHODS_MAX = 6  # what an in-memory twin can keep without becoming a second product
ARCHITECTURE_LINES_MAX = 200

NAMES_REFUSED = {"util", "utils", "helper", "helpers", "manager", "managers"}
# Written so that this file does not match itself.
WORDS_REFUSED = {
    "a path of a developer's machine": re.compile(r"/(?:[r]oot|[U]sers|home/[a-z]\w*|[w]ork/(?:main|shared))(?:/|\b)"),
    "a registry host": re.compile(r"(?i)\b(?:[p]ypi\.org|[p]ythonhosted\.org|[r]egistry\.npmjs\.|[c]rates\.io)"),
    "an index of packages": re.compile(r"--(?:extra-)?[i]ndex-url[ =]\S*:|--[f]ind-links[ =]\S*[:/]"),
}
CLASS = re.compile(r"\s*class (\w+)[(:\[]")
CLOCKS = {"now", "utcnow", "today"}
# docs/glossary.md has the word of the field for each of these.
IDENTIFIERS_REFUSED = {
    "ahead", "born", "company", "doors", "ghost", "ghosts", "haunt", "heir", "look", "nobody", "restless",
    "rouse", "said", "say", "somebody", "sudden", "told", "unsettled", "veil", "whereabouts", "whoever", "words",
}  # fmt: skip

Complaints = Iterator[str]


def functions_fit_on_a_screen(module: Module) -> Complaints:
    for node in module.nodes(ast.FunctionDef, ast.AsyncFunctionDef):
        lines = node.end_lineno - node.lineno + 1
        if lines > FUNCTION_LINES_MAX:
            yield f"{module.place(node.lineno)}: {node.name} has {lines} lines, at most {FUNCTION_LINES_MAX}"


def files_are_short(module: Module) -> Complaints:
    rule = module.under(PLACEMENT / "filters") or module.under(PLACEMENT / "scorers")
    limit = RULE_LINES_MAX if rule else FILE_LINES_MAX
    lines = len(module.text.splitlines())
    if lines > limit:
        yield f"{module.place(limit + 1)}: the file has {lines} lines, at most {limit}"


def ports_are_small(module: Module) -> Complaints:
    for node in module.nodes(ast.ClassDef) if module.under(SOURCE / "ports") else ():
        # Protocol, typing.Protocol, Protocol[T]
        if not any("Protocol" in ast.unparse(base) for base in node.bases):
            continue
        methods = sum(isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) for item in node.body)
        if methods > PORT_METHODS_MAX:
            yield f"{module.place(node.lineno)}: port {node.name} has {methods} methods, at most {PORT_METHODS_MAX}"


def modules_say_what_they_are(module: Module) -> Complaints:
    if not ast.get_docstring(module.tree):
        yield f"{module.place()}: begin with a docstring that says the file's role"


def names_say_something() -> Complaints:
    for path in files(ROOT):
        refused = NAMES_REFUSED & set(path.stem.lower().split("_"))
        if refused:
            yield f"{place(path)}: '{refused.pop()}' says nothing; name the file after what it does"


def no_word_that_does_not_belong() -> Complaints:
    for path in files(ROOT):
        content = path.read_bytes()
        if b"\0" in content:  # an image, a font
            continue
        for number, line in enumerate(content.decode(errors="replace").splitlines(), start=1):
            for what, pattern in WORDS_REFUSED.items():
                found = pattern.search(line)
                if found:
                    yield f"{place(path, number)}: {what}: {found.group()}"


def locks_name_no_host() -> Complaints:
    for path in ROOT.glob("requirements*.lock"):
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            if "://" in line or line.startswith("-"):
                yield f"{place(path, number)}: only packages and hashes belong in a lock: {line}"


def locks_hold_every_dependency() -> Complaints:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    runtime, dev = project["dependencies"], project["optional-dependencies"]["dev"]
    for lock, wanted in {"requirements.lock": runtime, "requirements-dev.lock": runtime + dev}.items():
        locked = set(re.findall(r"^([\w.-]+)==", (ROOT / lock).read_text(), flags=re.MULTILINE))
        for requirement in wanted:
            name = re.split(r"[^\w.-]", requirement)[0]
            if name not in locked:
                yield f"{lock}:1: {name} is in pyproject.toml but not in the lock; run `make lock`"


def waiting_is_for_something(module: Module) -> Complaints:
    """time.sleep(2) hopes; a loop that ends when the thing has happened waits. Sleeping inside such a loop is fine."""
    if not module.under(ROOT / "tests"):
        return
    for sleep in filter(is_sleep_of_a_number, module.nodes(ast.Call)):
        loops = filter(ends_early, module.nodes(ast.While, ast.For))
        if not any(sleep in ast.walk(loop) for loop in loops):
            yield f"{module.place(sleep.lineno)}: {ast.unparse(sleep)} hopes; wait for what has to happen"


def ends_early(node: ast.AST) -> bool:
    if isinstance(node, ast.While) and not isinstance(node.test, ast.Constant):
        return True
    exits = ast.Break | ast.Return
    return isinstance(node, ast.While | ast.For) and any(isinstance(inner, exits) for inner in ast.walk(node))


def is_sleep_of_a_number(call: ast.Call) -> bool:
    number = bool(call.args) and isinstance(call.args[0], ast.Constant)
    return number and ast.unparse(call.func) in {"time.sleep", "sleep"}


def keeper_uses_only_the_standard_library(module: Module) -> Complaints:
    """The keeper is the parent of all workloads on a node; it has to be small and start at once."""
    for node in module.nodes(ast.Import, ast.ImportFrom) if module.under(SOURCE / "keeper") else ():
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
        for name in names:
            own = name in ("roost", "roost.keeper") or name.startswith("roost.keeper.")  # "roost" has only its version
            if not own and name.split(".")[0] not in sys.stdlib_module_names:
                yield f"{module.place(node.lineno)}: {ast.unparse(node)}: the keeper imports only the standard library"


def pure_code_reads_no_clock(module: Module) -> Complaints:
    for node in module.nodes(ast.Call) if is_pure(module) else ():
        if isinstance(node.func, ast.Attribute) and node.func.attr in CLOCKS:
            owner = ast.unparse(node.func.value).split(".")[-1]
            if owner in {"datetime", "date"}:
                yield f"{module.place(node.lineno)}: {ast.unparse(node)} reads a clock; time is an argument"


def pure_code_iterates_over_no_set(module: Module) -> Complaints:
    """The order of a set differs from run to run, and so would the decision."""
    for node in module.nodes(ast.For, ast.comprehension) if is_pure(module) else ():
        made = isinstance(node.iter, ast.Call) and ast.unparse(node.iter.func) in {"set", "frozenset"}
        if made or isinstance(node.iter, ast.Set | ast.SetComp):
            yield f"{module.place(node.iter.lineno)}: iterates over a set; sort it first"


def descriptors_are_closed_once(module: Module) -> Complaints:
    """uvloop closes a pipe's descriptor twice. In between, another thread may have opened a file with its number."""
    for node in module.nodes(ast.Attribute) if module.under(SOURCE) else ():
        if node.attr in {"connect_read_pipe", "connect_write_pipe"}:
            yield f"{module.place(node.lineno)}: use a socket pair; uvloop closes descriptors of pipes twice"


def core_has_no_circle_of_imports(module: Module) -> Complaints:
    """An import for the type checker alone hides a circle between rules and data."""
    for node in module.nodes(ast.Name) if module.under(SOURCE / "core") else ():
        if node.id == "TYPE_CHECKING":
            yield f"{module.place(node.lineno)}: break the circle of imports instead"


def architecture_is_short() -> Complaints:
    path = ROOT / "ARCHITECTURE.md"
    lines = len(path.read_text(encoding="utf-8").splitlines()) if path.exists() else 0
    if lines > ARCHITECTURE_LINES_MAX:
        yield f"{place(path, ARCHITECTURE_LINES_MAX + 1)}: {lines} lines, at most {ARCHITECTURE_LINES_MAX}"


def folders_are_rooms() -> Complaints:
    """A folder with more modules than this is a corridor: make rooms."""
    counts: Counter[Path] = Counter(path.parent for path in files(SOURCE) if path.suffix == ".py")
    for folder, count in sorted(counts.items()):
        if count > FOLDER_MODULES_MAX:
            yield f"{place(folder)}: {count} modules, at most {FOLDER_MODULES_MAX}"


def classes_have_a_name_of_their_own() -> Complaints:
    """Two classes of one name: a reader who searches for it finds the wrong one."""
    seen: dict[str, str] = {}
    for path in files(SOURCE):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if found := CLASS.match(line):
                if found[1] in seen:
                    yield f"{place(path, number)}: {found[1]} is also defined in {seen[found[1]]}"
                seen[found[1]] = place(path, number)


def identifiers_are_words_of_the_field(module: Module) -> Complaints:
    """No generic verb or pronoun as a name; a loop variable says what it is, not `each`."""
    for node in module.nodes(ast.Name, ast.arg, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store):
            continue
        name = node.id if isinstance(node, ast.Name) else node.arg if isinstance(node, ast.arg) else node.name
        if name.strip("_").lower() in IDENTIFIERS_REFUSED:
            yield f"{module.place(node.lineno)}: {name}: see docs/glossary.md for the word of the field"
    for node in module.nodes(ast.For, ast.comprehension):
        if isinstance(node.target, ast.Name) and node.target.id == "each":
            yield f"{module.place(node.target.lineno)}: each: name the loop variable after what it holds"


def is_pure(module: Module) -> bool:
    machine = module.under(SOURCE / "server") and module.path.name == "machine.py"
    return machine or any(module.under(SOURCE / name) for name in ("core", "model", "agent/actor.py"))


MODULE_RULES: list[Callable[[Module], Complaints]] = [
    functions_fit_on_a_screen,
    files_are_short,
    ports_are_small,
    modules_say_what_they_are,
    waiting_is_for_something,
    keeper_uses_only_the_standard_library,
    pure_code_reads_no_clock,
    pure_code_iterates_over_no_set,
    descriptors_are_closed_once,
    core_has_no_circle_of_imports,
    identifiers_are_words_of_the_field,
    prose.no_refused_words,
]
FILE_RULES: list[Callable[[], Complaints]] = [
    names_say_something,
    no_word_that_does_not_belong,
    locks_name_no_host,
    locks_hold_every_dependency,
    architecture_is_short,
    folders_are_rooms,
    classes_have_a_name_of_their_own,
]


def test_modules() -> None:
    seen, complaints = set(), []
    for module in modules():
        seen.add(module.path)
        complaints += [complaint for rule in MODULE_RULES for complaint in rule(module)]
    assert not complaints, "\n" + "\n".join(complaints)
    # No modules at all would pass every rule.
    assert {SOURCE / "__init__.py", Path(__file__)} <= seen


@pytest.mark.parametrize("rule", FILE_RULES, ids=lambda rule: rule.__name__)
def test_files(rule: Callable[[], Complaints]) -> None:
    complaints = list(rule())
    assert not complaints, "\n" + "\n".join(complaints)


def test_generated_wire_code_is_what_the_protos_say(tmp_path: Path) -> None:
    if not list((ROOT / "proto").glob("roost/*/v*/*.proto")):
        pytest.skip("no proto yet")
    subprocess.run([sys.executable, ROOT / "tools" / "proto.py", tmp_path], check=True, capture_output=True)
    made = {path.name: path.read_text() for path in (tmp_path / "roost" / "wire").iterdir()}
    stored = {path.name: path.read_text() for path in (SOURCE / "wire").glob("*_pb2*")}
    stale = sorted(name for name in made.keys() | stored.keys() if made.get(name) != stored.get(name))
    assert not stale, f"src/roost/wire differs from proto/ in {', '.join(stale)}; run `make proto`"
