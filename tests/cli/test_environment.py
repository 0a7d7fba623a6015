"""Every environment variable that the source names is in the reference."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
NAME = re.compile(r"\b(ROOST_[A-Z_]*[A-Z]|SCHEDULING_STRATEGY|NO_COLOR|XDG_[A-Z_]+)\b")
# Of the completion script, and the examples of a service's address and a dependency's result.
NOT_READ = {"ROOST_COMPLETE", "ROOST_DB_SQL", "ROOST_RESULT_BUILD"}
PAGES = ("docs/reference/configuration.md", "docs/reference/workload.md", "docs/guides/webhooks.md")


def test_environment_variables_are_documented() -> None:
    documented = "".join((ROOT / page).read_text(encoding="utf-8") for page in PAGES)
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src/roost").rglob("*.py"))
    names = set(NAME.findall(sources)) - NOT_READ
    assert len(names) >= 25, "they are found"
    assert sorted(name for name in names if f"{name}`" not in documented and f"${name}" not in documented) == []
