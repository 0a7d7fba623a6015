"""Placeholders in lines for a shell: each becomes a quoted variable, so that no value is ever read as shell code.

`--lr {{lr}}` becomes `--lr "${PARAM_lr}"`, and the value is in the environment. A small reader finds out whether a
placeholder stands in double quotes already. Where that is not plain, or where another shell reads the line again, the
template is refused. If the reader is mistaken, a value may become several words, but never code.
"""

import re
from collections.abc import Iterator, Sequence
from posixpath import basename

from roost.model.errors import Invalid
from roost.model.spec.templates.placeholders import Piece

PREFIX = "PARAM_"  # of the variables that hold the values
SHELLS = ("sh", "bash", "dash", "ash", "zsh", "ksh", "mksh", "fish")
#: Programs that read code in an option: `-c` or `-e`.
INTERPRETERS = re.compile(r"python[0-9.]*|perl|ruby|node|php|lua")
#: Programs whose first argument is code.
EDITORS = ("sed", "awk", "gawk", "mawk")
_WITH_VALUE = ("-v", "-F")  # their options that are followed by a value
#: Programs that pass their arguments to a shell, or read them as code.
DELEGATES = ("ssh", "su", "watch", "parallel", "eval")
#: Programs that run the one that is named behind them.
WRAPPERS = ("env", "nice", "ionice", "nohup", "sudo", "timeout", "time", "setsid", "stdbuf", "taskset", "xargs", "exec")
INSTEAD = 'set it in `env`, as `env: {NAME: "{{NAME}}"}`, and write "$NAME" there'
#: Words before a command.
KEYWORDS = ("if", "elif", "while", "until", "do", "then", "else", "command", "builtin")
_OBSCURE = re.compile(r"(?P<backtick>`)|(?P<heredoc><<)|(?P<ansi>\$')|(?P<arithmetic>\(\(|\[\[)")
OBSCURE = {
    "backtick": "a line with placeholders cannot have backticks; write $(...) in their place",
    "heredoc": "a line with placeholders cannot have << in it",
    "ansi": "a line with placeholders cannot have $'...' in it",
    "arithmetic": "a line with placeholders cannot have ((...)) or [[...]]: they read values as code",
}
CODE = "a line with placeholders cannot give them to another shell, eval, ssh, sed or `python -c`, which read code"
MARK = "\0"  # in place of a placeholder: no line has one
_SUSPECTS = re.compile(
    rf"\b(?:{'|'.join((*SHELLS, *DELEGATES, *EDITORS))}|{INTERPRETERS.pattern})\b"
)  # most lines have none of these words
_COMMANDS = re.compile(r"[;&|(){}!\n]")  # between two commands of a line
_ASSIGNMENT = re.compile(r"\w+=")
_COMMAND_OPTION = re.compile(r"-[A-Za-z]*c")
_MARKS = re.compile(r"""[\\'"(){}#\n]""")  # all else is part of a word


def variable_of(name: str) -> str:
    return PREFIX + name


def shell_line(pieces: Sequence[Piece], path: str) -> str:
    """The line with variables in place of its placeholders."""
    text = "".join(piece if isinstance(piece, str) else MARK for piece in pieces)
    obscure = _OBSCURE.search(text)
    if obscure is not None or (_SUSPECTS.search(text) and any(map(_reads_code, _COMMANDS.split(text)))):
        what = OBSCURE[str(obscure.lastgroup)] if obscure is not None else CODE
        raise Invalid(path, f"{what}; or {INSTEAD}")
    return "".join(_quoted(pieces, path))


def _reads_code(command: str) -> bool:
    """Whether a command may read its arguments as code: `bash -c`, `eval`, `nice ssh`."""
    is_program = True  # at the beginning, and behind a wrapper or an assignment everywhere
    has_shell = is_wrapped = has_options = False
    parts = command.split()
    for number, part in enumerate(parts):
        word = part.strip("'\"")
        name = basename(word)
        has_options = has_options and word.startswith("-")  # of an interpreter, before its script
        if has_options and _CODE_OPTION.fullmatch(word):
            return True
        if is_program and name in EDITORS and _edits(parts, number + 1):
            return True
        has_options = has_options or INTERPRETERS.fullmatch(name) is not None
        if has_shell and _COMMAND_OPTION.fullmatch(word) or is_program and name in DELEGATES:
            return True
        has_shell = has_shell or name in SHELLS
        is_wrapped = is_wrapped or (is_program and (name in WRAPPERS or _ASSIGNMENT.match(word) is not None))
        is_program = is_wrapped or (is_program and name in KEYWORDS)
    return False


def _edits(arguments: Sequence[str], start: int) -> bool:
    """Whether the code of sed or awk, whose arguments begin here, has a placeholder, or its end is not plain."""
    skipped = is_open = False
    for index in range(start, len(arguments)):
        argument = arguments[index]
        if argument == "-f" and not is_open:
            return False  # the code is in a file
        if is_open or not (skipped or argument.startswith("-")):
            is_open ^= argument.count('"') % 2 == 1
            if MARK in argument or argument.startswith("'"):
                return MARK in argument
            if not is_open:
                return False
        skipped = not skipped and argument in _WITH_VALUE
    return is_open


def _quoted(pieces: Sequence[Piece], path: str) -> Iterator[str]:
    reader = QuoteReader()
    for piece in pieces:
        if isinstance(piece, str):
            reader.read(piece)
            yield piece
            continue
        if reader.is_escaped or reader.stack[-1] in "'{":
            where = "after a backslash" if reader.is_escaped else "in single quotes or ${...}"
            quoted = f"{{{{{piece.name}}}}}"
            raise Invalid(path, f"{quoted} stands {where}; write it without quotes: it is quoted when it is put in")
        variable = f"${{{variable_of(piece.name)}}}"
        yield variable if reader.stack[-1] == '"' else f'"{variable}"'
        reader.read("x")  # a value is part of a word


class QuoteReader:
    """Reads a line piece by piece; the top of its stack says where it is.

    `(`: outside of quotes. `'` and `"`: inside. `{`: in ${...}. `#`: in a comment.
    """

    def __init__(self) -> None:
        self.stack = ["("]
        self.is_escaped = False
        self._before = "\n"

    def read(self, text: str) -> None:
        if not text:
            return
        escaped_at, self.is_escaped = (0 if self.is_escaped else -1), False
        for found in _MARKS.finditer(text):
            at = found.start()
            if at == escaped_at:
                continue
            before = text[at - 1] if at else self._before
            self._step(found.group(), "x" if at and at - 1 == escaped_at else before)
            if self.is_escaped:
                self.is_escaped, escaped_at = False, at + 1
        self.is_escaped = escaped_at == len(text)
        self._before = "x" if escaped_at == len(text) - 1 else text[-1]

    def _step(self, mark: str, before: str) -> None:
        where = self.stack[-1]
        if where in "'{#":
            if mark == {"'": "'", "{": "}", "#": "\n"}[where]:
                self.stack.pop()
        elif mark == "\\":
            self.is_escaped = True
        elif mark == '"':
            self.stack.pop() if where == '"' else self.stack.append('"')
        elif before == "$" and mark in "({":
            self.stack.append(mark)
        elif where == '"':
            return
        elif mark == "'" or mark == "(" or (mark == "#" and before in " \t\n;&|()"):
            self.stack.append(mark)
        elif mark == ")" and len(self.stack) > 1:
            self.stack.pop()


def line_in(arguments: Sequence[str], path: str) -> int | None:
    """Which argument of a command is a line for a shell, as in [bash, -c, LINE]. `arguments`: as in the template."""
    is_program = True  # at the beginning, and behind a wrapper everywhere
    marked = [text.replace("{{", MARK) for text in arguments]
    for index, argument in enumerate(arguments):
        program = basename(argument)
        is_shell = program in SHELLS or (index == 0 and "{{" in argument)
        if is_program and program in DELEGATES and any("{{" in text for text in arguments[index:]):
            raise Invalid(path, f"{program} gives its arguments to a shell, which would read values as code; {INSTEAD}")
        if is_program and program in EDITORS and _edits(marked, index + 1):
            raise Invalid(path, f"{program} reads its first argument as code, and a value in it too; {INSTEAD}")
        if is_shell or INTERPRETERS.fullmatch(program):
            found = _code_after(arguments, index + 1)
            if found is not None and "{{" in arguments[found]:
                if is_shell and "{{" not in argument and arguments[found][:1] not in ("-", "+"):
                    return found
                raise Invalid(f"{path}[{found}]", f"this is code, and a value in it would be read as code; {INSTEAD}")
        is_program = program in WRAPPERS or (is_program and index > 0)
    return None


def _code_after(arguments: Sequence[str], start: int) -> int | None:
    """The argument that an interpreter reads as code: the first that is no option, if one of them is -c or -e."""
    has_code, index = False, start
    while index < len(arguments) and arguments[index][:1] in ("-", "+"):
        option = arguments[index]
        if "{{" in option:
            return index
        has_code = has_code or bool(_CODE_OPTION.fullmatch(option))
        index += 2 if option[-1] in "oO" and not option.startswith("--") else 1
    return index if has_code and index < len(arguments) else None


_CODE_OPTION = re.compile(r"-[A-Za-z]*[ceEr]|--(?:eval|exec|command)")
