"""Everything that is wrong with a document, so that its author can correct it in one go."""

from collections.abc import Callable, Iterable
from typing import Any, ParamSpec, TypeVar, cast

from roost.model.errors import Invalid

ERRORS_MAX = 50  # reported at once: a screen or two; a generated document may have thousands

P = ParamSpec("P")
Item = TypeVar("Item")
Result = TypeVar("Result")


class Problems:
    def __init__(self) -> None:
        self.found: list[Invalid] = []

    def check(self, function: Callable[P, Result], *args: P.args, **kwargs: P.kwargs) -> Result:
        """What the function returns. After an error that is nothing to go on with: call `refuse` before it is used."""
        try:
            return function(*args, **kwargs)
        except Invalid as error:
            self.found += error.every
            return cast(Result, None)

    def refuse(self) -> None:
        """Raise all errors as one, if there are any."""
        if self.found:
            raise all_of(self.found)


def check_each(check: Callable[[Item, str], Result], items: Iterable[tuple[str, Item]]) -> list[Result]:
    """Check all items, each with its path. Raises the errors of all of them as one."""
    problems = Problems()
    results = [problems.check(check, item, path) for path, item in items]
    problems.refuse()
    return results


def indexed(items: Iterable[Item], path: str) -> list[tuple[str, Item]]:
    return [(f"{path}[{index}]", item) for index, item in enumerate(items)]


def all_of(errors: list[Invalid]) -> Invalid:
    """One error that stands for several: it is the first, and `params.errors` lists all of them."""
    first, shown = errors[0], errors[:ERRORS_MAX]
    if len(errors) == 1:
        return first
    listed = [{"path": error.path, "code": error.code, "message": error.message} for error in shown]
    params: dict[str, Any] = {"errors": listed}
    if len(errors) > len(shown):
        params["left_out"] = len(errors) - len(shown)
    error = Invalid(first.path, first.message, code=first.code, text=first.text, params=params)
    error.every = tuple(errors)
    return error
