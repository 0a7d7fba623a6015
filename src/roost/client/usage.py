"""The namespace `usage`: what the attempts of projects have had and used."""

import builtins

from roost.client.namespace import Namespace
from roost.schema.projects import UsagePage, UsageRow


class UsageCalls(Namespace):
    def list(
        self, *, project: str = "", by: str = "project", since: str = "", until: str = ""
    ) -> builtins.list[UsageRow]:
        """Usage by project, workload or day, of whole days. Times: RFC 3339, or a duration ago."""
        return self._items("/v1/usage", UsagePage, {"project": project, "by": by, "since": since, "until": until})
