"""Help at the width of the terminal: examples stay lines, and no word is broken."""

import re
import textwrap

import click

AS_WRITTEN = "\b\n"  # click's mark of a paragraph that it does not wrap
EXPLAINED = re.compile(r"(\s+\S.*?\s{2,})(\S.*)$")  # an example, and behind it what it does


class HelpFormatter(click.HelpFormatter):
    def write_text(self, text: str) -> None:
        paragraphs = [
            AS_WRITTEN + wrapped(paragraph.removeprefix(AS_WRITTEN), self.width - self.current_indent)
            if paragraph.startswith(AS_WRITTEN) else paragraph
            for paragraph in text.split("\n\n")
        ]  # fmt: skip
        super().write_text("\n\n".join(paragraphs))


class HelpContext(click.Context):
    formatter_class = HelpFormatter


def wrapped(paragraph: str, width: int) -> str:
    """Indented lines stay lines; other text flows."""
    lines: list[str] = []
    for line in paragraph.split("\n"):
        if lines and not line.startswith((" ", "Next", "Exit code")) and not lines[-1].startswith(" "):
            lines[-1] += f" {line}"
        else:
            lines.append(line)
    return "\n".join(_fitted(line, width) for line in lines)


def _fitted(line: str, width: int) -> str:
    """A line in several, if it is too long: the explanation of an example below itself, a command with backslashes."""
    if len(line) <= width:
        return line
    indent = len(line) - len(line.lstrip())
    if indent and (found := EXPLAINED.match(line)):
        column = min(len(found[1]), width // 2)
        below = _fill(found[2], width, column)
        start = found[1].rstrip()
        return start + below[len(start) :] if len(start) < column else f"{_fitted(start, width)}\n{below}"
    if line.lstrip().startswith("roost "):
        return " \\\n".join(_fill(line.lstrip(), width - 2, indent, indent + 2).split("\n"))
    return _fill(line.lstrip(), width, indent)


def _fill(text: str, width: int, first: int, others: int | None = None) -> str:
    return textwrap.fill(
        text, width, initial_indent=" " * first, subsequent_indent=" " * (first if others is None else others),
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
