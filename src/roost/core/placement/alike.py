"""Nodes that a rule cannot tell apart, because they are equal in all fields that it reads."""

import numpy as np

from roost.core.state.fleet import Fleet, Ints
from roost.model.spec.rule_parser import referenced_fields
from roost.model.spec.rules import FIELDS, NOW

MAPPINGS = {"labels": "labels", "capacity": "resources"}  # of the fields of a rule, with their field of the facts


def rows_alike(fleet: Fleet, rule: str) -> tuple[Ints, Ints]:
    """A row of each kind of nodes that a rule can tell apart, and the kind of each row."""
    rows, kinds = np.zeros(min(1, len(fleet)), np.int64), np.zeros(len(fleet), np.int64)
    for word, keys in referenced_fields(rule):
        if word == "name" or (word in MAPPINGS and keys is None):
            return np.arange(len(fleet)), np.arange(len(fleet))
        if word in FIELDS and word not in NOW:
            for entry in keys or () if word in MAPPINGS else ("",):
                values, numbers = fleet.kinds(MAPPINGS.get(word, word), entry)
                _, rows, kinds = np.unique(kinds * len(values) + numbers, return_index=True, return_inverse=True)
    return rows, kinds
