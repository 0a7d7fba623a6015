"""Plug-ins: what installed packages add to the core, found by the entry point group `roost.plugins`.

They are loaded once, before anything is decided. One that cannot be loaded is an error that names it: work that was
placed without a filter its operator counts on would be placed wrongly.
"""

from importlib.metadata import EntryPoint, entry_points

from roost.core.placement.registry import Registry
from roost.model.errors import Invalid

GROUP = "roost.plugins"

_loaded: dict[tuple[str, str], Registry] = {}  # by name and value: a process that asks twice loads once


def load_plugins() -> tuple[str, ...]:
    """Load every installed plug-in; return the names of their strategies. Raises Invalid."""
    for entry in sorted(entry_points(group=GROUP), key=lambda entry_point: (entry_point.name, entry_point.value)):
        if (entry.name, entry.value) not in _loaded:
            _loaded[entry.name, entry.value] = _load(entry)
    return tuple(strategy.name for registry in _loaded.values() for strategy in registry.strategies)


def _load(entry: EntryPoint) -> Registry:
    registry = Registry()
    try:
        entry.load()(registry)
    except Exception as error:  # what foreign code raises is shown with the name of the plug-in
        package = f" of {entry.dist.name} {entry.dist.version}" if entry.dist is not None else ""
        reason = str(error) or type(error).__name__
        message = f"the plug-in {entry.name}{package} ({entry.value}) cannot be loaded: {reason}"
        raise Invalid("plugins", message, code="plugin") from error
    registry.install()
    return registry
