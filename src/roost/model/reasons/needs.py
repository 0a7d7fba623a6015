"""Reasons about what work asks for."""

from roost.model.reasons.subjects import BaseReason


class RequestAboveUse(BaseReason, frozen=True):
    """It asks for far more than its last runs used: memory at their peak, cpu on average."""

    resource: str  # cpu | memory
    asked: int  # milli-cores or bytes
    used_max: int  # of the run that used most
    runs: int
