"""The data of the core: records, indexes, timers, and how they change. Imports no rule."""
