"""Style as a test: budgets, names and words. Every complaint names a file and a line."""

import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "roost"
PLACEMENT = SOURCE / "core" / "placement"

FUNCTION_LINES_MAX = 70  # one screen
FILE_LINES_MAX = 400  # one sitting
RULE_LINES_MAX = 80  # a filter or a scorer: a mask or a vector, and a sentence
FOLDER_MODULES_MAX = 20  # what a newcomer reads before opening one
PORT_METHODS_MAX = 6  # what an in-memory twin can keep without becoming a second product
ARCHITECTURE_LINES_MAX = 200

NAMES_REFUSED = {"util", "utils", "helper", "helpers", "manager", "managers"}
FOLDERS_SKIPPED = {"__pycache__", "node_modules", "dist", "build"}
# Written so that this file does not match itself.
WORDS_REFUSED = {
    "a path of a developer's machine": re.compile(r"/(?:[r]oot|[U]sers|home/[a-z]\w*|[w]ork/(?:main|shared))(?:/|\b)"),
    "a registry host": re.compile(r"(?i)\b(?:[p]ypi\.org|[p]ythonhosted\.org|[r]egistry\.npmjs\.|[c]rates\.io)"),
    "an index of packages": re.compile(r"--(?:extra-)?[i]ndex-url[ =]\S*:|--[f]ind-links[ =]\S*[:/]"),
}
CLOCKS = {"now", "utcnow", "today"}
# docs/glossary.md has the word of the field for each of these.
IDENTIFIERS_REFUSED = {
    "ahead", "born", "company", "doors", "ghost", "ghosts", "haunt", "heir", "look", "nobody", "restless",
    "rouse", "said", "say", "somebody", "sudden", "told", "unsettled", "veil", "whereabouts", "whoever", "words",
}  # fmt: skip

Complaints = Iterator[str]


def walk(folder: Path) -> Iterator[Path]:
    """Files that belong to the project: no caches, no environments, no generated code, nothing hidden but .ci."""
    for path in sorted(folder.iterdir()):
        hidden = path.name.startswith(".") and path.name != ".ci"
        if path.is_symlink() or hidden or path.name in FOLDERS_SKIPPED or path.name.endswith(".egg-info"):
            continue
        if path.is_dir():
            yield from walk(path)
        elif "_pb2" not in path.name:
            yield path


FILES = list(walk(ROOT))
PYTHON = {path: path.read_text(encoding="utf-8") for path in FILES if path.suffix == ".py"}


@cache
def trees() -> dict[Path, ast.Module]:
    """Parsed by the first rule that needs them: every worker imports this file, and one of them runs the rules."""
    return {path: ast.parse(text, filename=str(path)) for path, text in PYTHON.items()}


@pytest.fixture(scope="module", autouse=True)
def trees_forgotten() -> Iterator[None]:
    """A million objects would slow down every garbage collection of the tests that follow."""
    yield
    trees.cache_clear()


def place(path: Path, line: int = 1) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def nodes(*kinds: type[ast.AST], under: Path = ROOT) -> Iterator[tuple[Path, ast.AST]]:
    for path, tree in trees().items():
        if path.is_relative_to(under):
            yield from ((path, node) for node in ast.walk(tree) if isinstance(node, kinds))


def pure_nodes(*kinds: type[ast.AST]) -> Iterator[tuple[Path, ast.AST]]:
    machines = [SOURCE / "agent" / "actor.py", *(SOURCE / "server").rglob("machine.py")]
    for under in (SOURCE / "core", SOURCE / "model", *machines):
        yield from nodes(*kinds, under=under)


def functions_fit_on_a_screen() -> Complaints:
    for path, node in nodes(ast.FunctionDef, ast.AsyncFunctionDef):
        lines = node.end_lineno - node.lineno + 1
        if lines > FUNCTION_LINES_MAX:
            yield f"{place(path, node.lineno)}: {node.name} has {lines} lines, at most {FUNCTION_LINES_MAX}"


def files_are_short() -> Complaints:
    for path, text in PYTHON.items():
        rule = path.is_relative_to(PLACEMENT / "filters") or path.is_relative_to(PLACEMENT / "scorers")
        limit = RULE_LINES_MAX if rule else FILE_LINES_MAX
        lines = len(text.splitlines())
        if lines > limit:
            yield f"{place(path, limit + 1)}: the file has {lines} lines, at most {limit}"


def ports_are_small() -> Complaints:
    for path, node in nodes(ast.ClassDef, under=SOURCE / "ports"):
        # Protocol, typing.Protocol, Protocol[T]
        if not any("Protocol" in ast.unparse(base) for base in node.bases):
            continue
        methods = sum(isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef) for item in node.body)
        if methods > PORT_METHODS_MAX:
            yield f"{place(path, node.lineno)}: port {node.name} has {methods} methods, at most {PORT_METHODS_MAX}"


def modules_say_what_they_are() -> Complaints:
    for path, tree in trees().items():
        if not ast.get_docstring(tree):
            yield f"{place(path)}: begin with a docstring that says the file's role"


def names_say_something() -> Complaints:
    for path in FILES:
        refused = NAMES_REFUSED & set(path.stem.lower().split("_"))
        if refused:
            yield f"{place(path)}: '{refused.pop()}' says nothing; name the file after what it does"


def no_word_that_does_not_belong() -> Complaints:
    for path in FILES:
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


def waiting_is_for_something() -> Complaints:
    """time.sleep(2) hopes; a loop that ends when the thing has happened waits. Sleeping inside such a loop is fine."""
    for path, tree in trees().items():
        if not path.is_relative_to(ROOT / "tests"):
            continue
        polling = {id(node) for loop in ast.walk(tree) if ends_early(loop) for node in ast.walk(loop)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and id(node) not in polling and is_sleep_of_a_number(node):
                yield f"{place(path, node.lineno)}: {ast.unparse(node)} hopes; wait for what has to happen"


def ends_early(node: ast.AST) -> bool:
    if isinstance(node, ast.While) and not isinstance(node.test, ast.Constant):
        return True
    exits = ast.Break | ast.Return
    return isinstance(node, ast.While | ast.For) and any(isinstance(inner, exits) for inner in ast.walk(node))


def is_sleep_of_a_number(call: ast.Call) -> bool:
    number = bool(call.args) and isinstance(call.args[0], ast.Constant)
    return number and ast.unparse(call.func) in {"time.sleep", "sleep"}


def keeper_uses_only_the_standard_library() -> Complaints:
    """The keeper is the parent of all workloads on a node; it has to be small and start at once."""
    for path, node in nodes(ast.Import, ast.ImportFrom, under=SOURCE / "keeper"):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
        for name in names:
            own = name in ("roost", "roost.keeper") or name.startswith("roost.keeper.")  # "roost" has only its version
            if not own and name.split(".")[0] not in sys.stdlib_module_names:
                yield f"{place(path, node.lineno)}: {ast.unparse(node)}: the keeper imports only the standard library"


def pure_code_reads_no_clock() -> Complaints:
    for path, node in pure_nodes(ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr in CLOCKS:
            owner = ast.unparse(node.func.value).split(".")[-1]
            if owner in {"datetime", "date"}:
                yield f"{place(path, node.lineno)}: {ast.unparse(node)} reads a clock; time is an argument"


def pure_code_iterates_over_no_set() -> Complaints:
    """The order of a set differs from run to run, and so would the decision."""
    for path, node in pure_nodes(ast.For, ast.comprehension):
        made = isinstance(node.iter, ast.Call) and ast.unparse(node.iter.func) in {"set", "frozenset"}
        if made or isinstance(node.iter, ast.Set | ast.SetComp):
            yield f"{place(path, node.iter.lineno)}: iterates over a set; sort it first"


def descriptors_are_closed_once() -> Complaints:
    """uvloop closes a pipe's descriptor twice. In between, another thread may have opened a file with its number."""
    for path, node in nodes(ast.Attribute, under=SOURCE):
        if node.attr in {"connect_read_pipe", "connect_write_pipe"}:
            yield f"{place(path, node.lineno)}: use a socket pair; uvloop closes descriptors of pipes twice"


def core_has_no_circle_of_imports() -> Complaints:
    """An import for the type checker alone hides a circle between rules and data."""
    for path, node in nodes(ast.Name, under=SOURCE / "core"):
        if node.id == "TYPE_CHECKING":
            yield f"{place(path, node.lineno)}: break the circle of imports instead"


def architecture_is_short() -> Complaints:
    path = ROOT / "ARCHITECTURE.md"
    lines = len(path.read_text(encoding="utf-8").splitlines()) if path.exists() else 0
    if lines > ARCHITECTURE_LINES_MAX:
        yield f"{place(path, ARCHITECTURE_LINES_MAX + 1)}: {lines} lines, at most {ARCHITECTURE_LINES_MAX}"


def folders_are_rooms() -> Complaints:
    """A folder with more modules than this is a corridor: make rooms."""
    counts: Counter[Path] = Counter(path.parent for path in PYTHON if path.is_relative_to(SOURCE))
    for folder, count in sorted(counts.items()):
        if count > FOLDER_MODULES_MAX:
            yield f"{place(folder)}: {count} modules, at most {FOLDER_MODULES_MAX}"


def classes_have_a_name_of_their_own() -> Complaints:
    """Two classes of one name: a reader who searches for it finds the wrong one."""
    seen: dict[str, str] = {}
    for path, node in nodes(ast.ClassDef, under=SOURCE):
        assert isinstance(node, ast.ClassDef)
        if node.name in seen:
            yield f"{place(path, node.lineno)}: {node.name} is also defined in {seen[node.name]}"
        seen[node.name] = place(path, node.lineno)


def identifiers_are_words_of_the_field() -> Complaints:
    """No generic verb or pronoun as a name; a loop variable says what it is, not `each`."""
    for path, node in nodes(ast.Name, ast.arg, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store):
            continue
        name = node.id if isinstance(node, ast.Name) else node.arg if isinstance(node, ast.arg) else node.name
        if name.strip("_").lower() in IDENTIFIERS_REFUSED:
            yield f"{place(path, node.lineno)}: {name}: see docs/glossary.md for the word of the field"
    for path, node in nodes(ast.For, ast.comprehension):
        if isinstance(node.target, ast.Name) and node.target.id == "each":
            yield f"{place(path, node.target.lineno)}: each: name the loop variable after what it holds"


RULES = [
    functions_fit_on_a_screen,
    files_are_short,
    ports_are_small,
    modules_say_what_they_are,
    names_say_something,
    no_word_that_does_not_belong,
    locks_name_no_host,
    locks_hold_every_dependency,
    waiting_is_for_something,
    keeper_uses_only_the_standard_library,
    pure_code_reads_no_clock,
    pure_code_iterates_over_no_set,
    descriptors_are_closed_once,
    core_has_no_circle_of_imports,
    architecture_is_short,
    folders_are_rooms,
    classes_have_a_name_of_their_own,
    identifiers_are_words_of_the_field,
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_style(rule: Callable[[], Complaints]) -> None:
    complaints = list(rule())
    assert not complaints, "\n" + "\n".join(complaints)


def test_the_rules_see_the_code() -> None:
    """An empty list of files would pass every rule."""
    assert SOURCE / "__init__.py" in trees()
    assert Path(__file__) in trees()


def test_generated_wire_code_is_what_the_protos_say(tmp_path: Path) -> None:
    if not list((ROOT / "proto").glob("roost/*/v*/*.proto")):
        pytest.skip("no proto yet")
    subprocess.run([sys.executable, ROOT / "tools" / "proto.py", tmp_path], check=True, capture_output=True)
    made = {path.name: path.read_text() for path in (tmp_path / "roost" / "wire").iterdir()}
    stored = {path.name: path.read_text() for path in (SOURCE / "wire").glob("*_pb2*")}
    stale = sorted(name for name in made.keys() | stored.keys() if made.get(name) != stored.get(name))
    assert not stale, f"src/roost/wire differs from proto/ in {', '.join(stale)}; run `make proto`"
