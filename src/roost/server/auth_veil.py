"""The veil: what is told of foreign projects in words about one's own work. That they exist, never their names.

Words come from the core, which knows no principals: `preempted by web/deploy.0`, `reserved for project web`. Whoever
does not see `web` reads that it is another project's.
"""

import re
from typing import TypeVar

import msgspec

from roost.server.auth_principal import Access
from roost.server.setting_views import PoolSetting, PoolView
from roost.server.version_views import RolloutView, VersionView
from roost.server.views import InstanceDetail, InstanceView, NodeDetail, WorkloadDetail, WorkloadView
from roost.server.why import SuggestionView, WhyView

FOREIGN = "another project's work"
FOREIGN_PROJECT = "another project"

# PROJECT/NAME, PROJECT/NAME.INDEX: not a part of a path, which has a slash or a dot before or behind it.
_KEY = re.compile(r"(?<![\w./-])([A-Za-z0-9][\w-]{0,62})/[A-Za-z0-9][\w-]{0,62}(?:\.\d+)?(?![\w/])")
_PROJECT = re.compile(r"\bproject ([A-Za-z0-9][\w-]{0,62})")

Work = TypeVar("Work", WorkloadView, WorkloadDetail)
Run = TypeVar("Run", InstanceView, InstanceDetail)
Pool = TypeVar("Pool", PoolView, PoolSetting)


class Veil:
    """What one principal may read. For whoever sees every project it changes nothing."""

    __slots__ = ("_access", "is_open")

    def __init__(self, access: Access) -> None:
        self._access = access
        self.is_open = access.sees_all

    def sees(self, key: str) -> bool:
        """Whether a workload or an instance, as PROJECT/NAME or PROJECT/NAME.INDEX, may be seen."""
        return self.is_open or self._access.sees(key.partition("/")[0])

    def words(self, text: str) -> str:
        """The same words without the names of foreign projects and their work."""
        if self.is_open or ("/" not in text and "project " not in text):
            return text
        hidden = _KEY.sub(lambda found: found[0] if self._access.sees(found[1]) else FOREIGN, text)
        return _PROJECT.sub(lambda found: found[0] if self._access.sees(found[1]) else FOREIGN_PROJECT, hidden)

    def key(self, key: str) -> str:
        """The key of a workload or an instance, if it may be seen."""
        return key if self.sees(key) else FOREIGN

    def workload(self, view: Work) -> Work:
        """A workload that may be seen."""
        if self.is_open:
            return view
        if isinstance(view, WorkloadDetail):
            view = msgspec.structs.replace(view, instances=[self.instance(each) for each in view.instances])
        return msgspec.structs.replace(
            view, cause=self.words(view.cause), change=self.words(view.change), rollout=self._rollout(view.rollout)
        )

    def version(self, view: VersionView) -> VersionView:
        """A version of a workload that may be seen."""
        if self.is_open:
            return view
        return msgspec.structs.replace(view, change=self.words(view.change), rollout=self._rollout(view.rollout))

    def instance(self, view: Run) -> Run:
        """An instance that may be seen."""
        if self.is_open:
            return view
        if isinstance(view, InstanceDetail):
            story = [msgspec.structs.replace(line, cause=self.words(line.cause)) for line in view.story]
            view = msgspec.structs.replace(view, story=story)
        return msgspec.structs.replace(view, cause=self.words(view.cause))

    def node(self, view: NodeDetail) -> NodeDetail:
        """A node: everybody may see how full it is, and what of one's own runs there."""
        if self.is_open:
            return view
        own = [self.instance(each) for each in view.instances if self._access.sees(each.project)]
        story = [msgspec.structs.replace(line, cause=self.words(line.cause)) for line in view.story]
        return msgspec.structs.replace(view, instances=own, story=story)

    def pool(self, view: Pool) -> Pool:
        """A pool: everybody may see it, but not for which foreign projects it is."""
        if self.is_open:
            return view
        own = [each for each in view.projects if self._access.sees(each)]
        return msgspec.structs.replace(view, projects=own, reason=self.words(view.reason))

    def why(self, view: WhyView) -> WhyView:
        """The answer to `why`. The place in the queue counts everybody; named are only those who may be seen."""
        if self.is_open:
            return view
        return msgspec.structs.replace(
            view,
            words=self.words(view.words),
            blockers=[msgspec.structs.replace(each, reason=self.words(each.reason)) for each in view.blockers],
            suggestions=[self._suggestion(each) for each in view.suggestions],
            ahead=[key for key in view.ahead if self.sees(key)],
        )

    def _rollout(self, view: RolloutView | None) -> RolloutView | None:
        return msgspec.structs.replace(view, cause=self.words(view.cause)) if view is not None else None

    def _suggestion(self, view: SuggestionView) -> SuggestionView:
        own = [key for key in view.instances if self.sees(key)]
        return msgspec.structs.replace(view, words=self.words(view.words), instances=own)
