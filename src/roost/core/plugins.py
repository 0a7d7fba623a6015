"""What others may add to the core: strategies and filters under names of their own, before anything is decided."""

from roost.core.filters import DYNAMIC, SOCIAL, STATIC, Dynamic, Static
from roost.core.strategies import STRATEGIES, Strategy
from roost.model.errors import Invalid
from roost.model.limits import WEIGHT_MAX
from roost.model.names import check_name


class Registry:
    """What one plug-in adds. Nothing of it counts until `install`, so a plug-in that fails half-way leaves nothing."""

    def __init__(self) -> None:
        self.strategies: list[Strategy] = []
        self.filters: list[Static | Dynamic] = []

    def add_strategy(self, strategy: Strategy) -> None:
        """A way to choose among the nodes that will do. Workloads, pools and servers ask for it by its name."""
        if not isinstance(strategy, Strategy):
            raise Invalid("strategy", f"this is a {type(strategy).__name__}, not a Strategy", code="plugin")
        _check_new(strategy.name, "strategy", [*STRATEGIES, *(each.name for each in self.strategies)])
        if not callable(strategy.pick):
            raise Invalid(f"strategy {strategy.name}", "pick must be a function", code="plugin")
        for scorer, weight in strategy.scorers:
            if not callable(getattr(scorer, "score", None)) or not callable(getattr(scorer, "score_one", None)):
                words = "each scorer has two functions, score and score_one"
                raise Invalid(f"strategy {strategy.name}", words, code="plugin")
            if type(weight) is not int or not 1 <= weight <= WEIGHT_MAX:
                raise Invalid(f"strategy {strategy.name}", f"a weight is 1 to {WEIGHT_MAX}", code="plugin")
        self.strategies.append(strategy)

    def add_filter(self, each: Static | Dynamic) -> None:
        """One more to say no: Static if only the node's own facts matter, Dynamic if each placement may change it."""
        if not isinstance(each, Static | Dynamic):
            raise Invalid("filter", f"this is a {type(each).__name__}, not a Static or Dynamic", code="plugin")
        known = [known.name for known in (*STATIC, *DYNAMIC, *SOCIAL, *self.filters)]
        _check_new(each.name, "filter", known)
        self.filters.append(each)

    def install(self) -> None:
        """From now on all of it counts. Blockers of filters that were added are told last."""
        for strategy in self.strategies:
            STRATEGIES[strategy.name] = strategy
        for each in self.filters:
            if isinstance(each, Static):
                STATIC.append(each)
            else:
                DYNAMIC.append(each)


def _check_new(name: str, noun: str, known: list[str]) -> None:
    check_name(name, noun)
    if name in known:
        raise Invalid(f"{noun} {name}", f"there is a {noun} of this name already", code="plugin")
