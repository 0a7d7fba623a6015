"""What operators and admins set: nodes, pools, projects, reservations, access, webhooks, servers, maintenance."""

import builtins
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

from roost.client.namespace import Namespace, Noun, given, path_of
from roost.schema.access.blob_keys import BlobKeysBody, BlobKeysView
from roost.schema.access.enrolment import JoinTokenMade, JoinTokenPage, JoinTokenView
from roost.schema.access.roles import MemberPage, MemberView, TokenMade, TokenPage, TokenView
from roost.schema.access.secrets import Resealed, SecretPage, SecretView
from roost.schema.nodes import DrainPlanView, MaintenanceView, NodeDetail, NodePage, NodeView
from roost.schema.pools import PoolPage, PoolView
from roost.schema.projects import ProjectPage, ProjectView, ReservationPage, ReservationView
from roost.schema.servers import LeaderView, RevokedView, ServersView
from roost.schema.webhooks import HookPage, HookTried, HookView
from roost.schema.work import TemplateApplied, TemplateDetail, TemplatePage, TemplateView

Duration = str | int | float  # `10m`, or seconds
_TEMPLATE = "/v1/templates/{}/{}"


class NodeCalls(Namespace):
    def list(self, *, status: str = "", at: str = "") -> builtins.list[NodeView]:
        return self._items("/v1/nodes", NodePage, {"status": status, "at": at})

    def get(self, name: str, *, at: str = "") -> NodeDetail:
        return self._get(path_of("/v1/nodes/{}", name), NodeDetail, {"at": at})

    def drain(self, name: str, deadline: Duration | None = None) -> NodeView:
        """Drain a node. Jobs may finish, until the deadline if there is one; 0 moves them at once."""
        return self._call("POST", path_of("/v1/nodes/{}/drain", name), NodeView, given(deadline=deadline))

    def preview_drain(self, name: str, deadline: Duration | None = None) -> DrainPlanView:
        """Where everything on a node would go if it was drained now. Nothing happens."""
        path = path_of("/v1/nodes/{}/drain", name)
        return self._call("POST", path, DrainPlanView, given(deadline=deadline), {"dry_run": True})

    def cordon(self, name: str) -> NodeView:
        """Cordon a node: no new work; running work stays."""
        return self._call("POST", path_of("/v1/nodes/{}/cordon", name), NodeView)

    def uncordon(self, name: str) -> NodeView:
        return self._call("POST", path_of("/v1/nodes/{}/uncordon", name), NodeView)

    def delete(self, name: str) -> None:
        """Delete a disconnected node without work."""
        self._transport.call("DELETE", path_of("/v1/nodes/{}", name))


class ProjectCalls(Noun[ProjectView]):
    """Projects. `set` takes the fields of ProjectSettings."""

    _item, _view, _page = "/v1/projects/{}", ProjectView, ProjectPage


class MemberCalls(Noun[MemberView]):
    _item, _view, _page = "/v1/projects/{}/members/{}", MemberView, MemberPage


class PoolCalls(Noun[PoolView]):
    """Pools. `set` takes the fields of PoolSettings."""

    _item, _view, _page = "/v1/pools/{}", PoolView, PoolPage

    def mark(self, name: str, status: str, reason: str = "") -> PoolView:
        """Set the status of a pool: `failed`, `draining` or `ready`."""
        body = {"status": status, "reason": reason}
        return self._call("PUT", path_of("/v1/pools/{}/status", name), PoolView, body)


class ReservationCalls(Noun[ReservationView]):
    _item, _view, _page = "/v1/reservations/{}", ReservationView, ReservationPage

    def create(
        self, name: str, project: str, *, nodes: Sequence[str] = (), count: int | None = None, pool: str = "",
        start: Duration | None = None, end: Duration | None = None,
    ) -> ReservationView:  # fmt: skip
        """Reserve these nodes, or a count of them. Start and end: moments, or durations from now."""
        body = given(name=name, project=project, nodes=list(nodes), pool=pool, count=count, start=start, end=end)
        return self._call("POST", "/v1/reservations", ReservationView, body)


class JoinTokenCalls(Noun[JoinTokenView]):
    _item, _view, _page = "/v1/join-tokens/{}", JoinTokenView, JoinTokenPage

    def list(self, *project: str) -> builtins.list[JoinTokenView]:
        """Join tokens that can still be used; never their secrets."""
        return self._get("/v1/join-tokens", JoinTokenPage).items

    def create(self, *, pool: str = "", uses: int | None = 1, expires: str | int = "1h") -> JoinTokenMade:
        """Create one; `uses`: None is any number."""
        body = {"pool": pool, "uses": "unlimited" if uses is None else uses, "expires": expires}
        return self._call("POST", "/v1/join-tokens", JoinTokenMade, body)


class TokenCalls(Noun[TokenView]):
    """Tokens of programs: those that you may administrate, never their secrets."""

    _item, _view, _page = "/v1/tokens/{}", TokenView, TokenPage

    def create(self, name: str, role: str, projects: Sequence[str], *, expires: Duration | None = None) -> TokenMade:
        """Create a token for projects (`["*"]`: everywhere). `expires`: `30d`, or `never`. The secret is shown once."""
        body = given(name=name, role=role, projects=list(projects), expires=expires)
        return self._call("POST", "/v1/tokens", TokenMade, body)

    def rotate(self, name: str, *, overlap: Duration | None = None, expires: Duration | None = None) -> TokenMade:
        """Create a new secret; the old one stays valid for `overlap`, one hour by default."""
        body = given(overlap=overlap, expires=expires)
        return self._call("POST", path_of("/v1/tokens/{}/rotate", name), TokenMade, body)


class SecretCalls(Noun[SecretView]):
    """Secrets of projects; their values cannot be read."""

    _item, _view, _page = "/v1/projects/{}/secrets/{}", SecretView, SecretPage

    def set_value(self, project: str, name: str, value: bytes) -> SecretView:
        """Set a secret. New attempts get this value."""
        return self.set(project, name, base64=b64encode(value).decode())

    def reseal(self) -> Resealed:
        return self._call("POST", "/v1/secrets/reseal", Resealed, {})


class BlobKeyCalls(Namespace):
    """Credentials of the servers for S3; the keys cannot be read."""

    def get(self) -> BlobKeysView:
        return self._get("/v1/blobs/credentials", BlobKeysView)

    def set(self, keys: BlobKeysBody, *, check: bool = True) -> BlobKeysView:
        """Use these keys on all servers. With `check`, keys with which S3 cannot be used are refused."""
        return self._call("PUT", "/v1/blobs/credentials", BlobKeysView, keys, {"check": check})

    def remove(self) -> None:
        """Every server uses those again that it was started with."""
        self._transport.call("DELETE", "/v1/blobs/credentials")


class WebhookCalls(Noun[HookView]):
    """Webhooks of the projects in which you are an operator. Project `*`: of all projects."""

    _item, _view, _page, _listed = "/v1/projects/{}/hooks/{}", HookView, HookPage, "/v1/hooks"

    def set(self, *key: str, events: Sequence[str] = (), secret: str | None = "", **fields: Any) -> HookView:
        """Set a webhook: url, events, workload, enabled. `secret`: empty keeps it, None removes it."""
        body = given(**fields, events=list(events) or None) | ({} if secret == "" else {"secret": secret})
        return self._call("PUT", path_of(self._item, *key), HookView, body)

    def test(self, project: str, name: str) -> HookTried:
        """Send a ping at once; the answer."""
        return self._call("POST", path_of("/v1/projects/{}/hooks/{}/test", project, name), HookTried, {})


class TemplateCalls(Namespace):
    """Templates of your projects, and shared ones: project `*`."""

    def list(self, project: str = "") -> builtins.list[TemplateView]:
        """All of them, each with its newest version; with a project: those that its workloads can use."""
        return self._items("/v1/templates", TemplatePage, {"project": project})

    def get(self, project: str, name: str, version: int = 0) -> TemplateDetail:
        """The template that a workload of a project would use: its own, or the shared one. 0: the newest version."""
        return self._get(path_of(_TEMPLATE, project, name), TemplateDetail, {"version": version})

    def apply(self, project: str, name: str, template: Mapping[str, Any]) -> TemplateApplied:
        """Make a new version, if it differs from the newest one. Fields: workload, parameters, description."""
        return self._call("PUT", path_of(_TEMPLATE, project, name), TemplateApplied, template)

    def delete(self, project: str, name: str) -> None:
        """Delete all versions. Workloads that were made from it stay."""
        self._transport.call("DELETE", path_of(_TEMPLATE, project, name))


class ServerCalls(Namespace):
    def list(self) -> ServersView:
        return self._get("/v1/servers", ServersView)

    def backup(self) -> bytes:
        """All records as of one revision, packed."""
        return self._transport.call("GET", "/v1/backup").body

    def transfer_leader(self, to: str = "") -> LeaderView:
        """Transfer leadership to a server, or to the first standby. Returns the previous leader."""
        return self._call("POST", "/v1/leader/transfer", LeaderView, {"to": to})

    def revoke_certificates(self) -> RevokedView:
        """Revoke the certificates of all servers; running servers issue new ones at once."""
        return self._call("POST", "/v1/servers/certificates/revoke", RevokedView)


class MaintenanceCalls(Namespace):
    """Maintenance: nothing is placed, moved, updated or lost."""

    def get(self) -> MaintenanceView:
        return self._get("/v1/maintenance", MaintenanceView)

    def begin(self, reason: str, lasting: Duration | None = None) -> MaintenanceView:
        """Start maintenance, for a duration or until it is ended."""
        return self._call("PUT", "/v1/maintenance", MaintenanceView, {"reason": reason, "for": lasting})

    def end(self) -> MaintenanceView:
        return self._call("DELETE", "/v1/maintenance", MaintenanceView)
