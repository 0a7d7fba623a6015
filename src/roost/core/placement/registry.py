"""What plug-ins add to the core before the first decision: strategies and filters."""

from roost.core.placement.filters import AFFINITY, DYNAMIC, STATIC, DynamicFilter, StaticFilter
from roost.core.placement.strategies import STRATEGIES, Strategy
from roost.model.errors import Invalid
from roost.model.limits import WEIGHT_MAX
from roost.model.spec.names import check_name


class Registry:
    """What one plug-in adds. It takes effect with `install`, so a plug-in that fails half-way changes nothing."""

    def __init__(self) -> None:
        self.strategies: list[Strategy] = []
        self.filters: list[StaticFilter | DynamicFilter] = []

    def add_strategy(self, strategy: Strategy) -> None:
        """Workloads, pools and servers choose a strategy by its name."""
        if not isinstance(strategy, Strategy):
            raise Invalid("strategy", f"this is a {type(strategy).__name__}, not a Strategy", code="plugin")
        _check_new(strategy.name, "strategy", [*STRATEGIES, *(strategy.name for strategy in self.strategies)])
        if not callable(strategy.pick):
            raise Invalid(f"strategy {strategy.name}", "pick must be a function", code="plugin")
        for scorer, weight in strategy.scorers:
            if not callable(getattr(scorer, "score", None)) or not callable(getattr(scorer, "score_one", None)):
                message = "each scorer has two functions, score and score_one"
                raise Invalid(f"strategy {strategy.name}", message, code="plugin")
            if type(weight) is not int or not 1 <= weight <= WEIGHT_MAX:
                raise Invalid(f"strategy {strategy.name}", f"a weight is 1 to {WEIGHT_MAX}", code="plugin")
        self.strategies.append(strategy)

    def add_filter(self, item: StaticFilter | DynamicFilter) -> None:
        """A static filter depends on the facts of a node only; each placement may change a dynamic one."""
        if not isinstance(item, StaticFilter | DynamicFilter):
            raise Invalid("filter", f"this is a {type(item).__name__}, not a Static or Dynamic", code="plugin")
        existing = [node_filter.name for node_filter in (*STATIC, *DYNAMIC, *AFFINITY, *self.filters)]
        _check_new(item.name, "filter", existing)
        self.filters.append(item)

    def install(self) -> None:
        """Blockers of added filters are reported last."""
        STRATEGIES.update({strategy.name: strategy for strategy in self.strategies})
        STATIC.extend(item for item in self.filters if isinstance(item, StaticFilter))
        DYNAMIC.extend(item for item in self.filters if isinstance(item, DynamicFilter))


def _check_new(name: str, noun: str, existing: list[str]) -> None:
    check_name(name, noun)
    if name in existing:
        raise Invalid(f"{noun} {name}", f"there is a {noun} of this name already", code="plugin")
