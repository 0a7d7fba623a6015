"""The client: one method for everything that can be asked of a server, each with a typed answer."""

from base64 import b64encode
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from roost.client import access, setting_types, types
from roost.client import secrets as kept
from roost.client.history import HistoryCalls
from roost.client.hooks import HookCalls
from roost.client.logs import LogFollower
from roost.client.operators import OperatorCalls
from roost.client.results import ResultCalls
from roost.client.schedules import ScheduleCalls
from roost.client.servers import ServerCalls
from roost.client.services import ServiceCalls
from roost.client.stream import Follower
from roost.client.transport import Query, Transport, segment
from roost.client.versions import VersionCalls
from roost.client.wait import Until, wait_for

PAGE = 1_000  # as much as a server gives at once

T = TypeVar("T")
Document = Mapping[str, Any]
Amounts = Mapping[str, str | int | float]


class Client(
    HistoryCalls, HookCalls, OperatorCalls, ResultCalls, ScheduleCalls, ServerCalls, ServiceCalls, VersionCalls
):  # fmt: skip
    """Speaks to one server, or to one of several (URLs with commas between).

    Every method raises ApiError when the server says no, Unreachable when there is none.
    """

    def __init__(self, url: str, token: str = "", ca: str = "") -> None:
        self.url = url
        self._transport = Transport(url, token, ca)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the connection; the client can be used again."""
        self._transport.close()

    # workloads

    def submit(self, document: Document, *, same_ok: bool = False) -> types.Workload:
        """Submit a workload. With `same_ok` the same document again is no conflict."""
        return self.submit_new(document, same_ok=same_ok)[0]

    def submit_new(self, document: Document, *, same_ok: bool = False, plan: str = "") -> tuple[types.Workload, bool]:
        """Submit a workload, and say whether it is new (True) or was there already. `plan`: the token of a plan."""
        query: Query = {"same_ok": same_ok or None, "plan": plan or None}
        answer = self._transport.call("POST", "/v1/workloads", query, _encode(document))
        return _decode(answer.body, types.Workload), answer.status == 201

    def submit_batch(
        self, documents: Sequence[Document], *, same_ok: bool = False, plan: str = ""
    ) -> list[types.Workload]:
        """Submit many workloads: all of them are taken in, or none. `plan`: the token of a plan for them."""
        query: Query = {"same_ok": same_ok or None, "plan": plan or None}
        answer = self._transport.call("POST", "/v1/workloads/batch", query, _encode(documents))
        return _decode(answer.body, types.Accepted).items

    def plan(self, documents: Sequence[Document]) -> types.Plan:
        """What submitting workloads would do; nothing is done. Its token makes a submission do exactly that."""
        return _decode(self._transport.call("POST", "/v1/plans", None, _encode(documents)).body, types.Plan)

    def workloads(
        self, *, project: str = "", name: str = "", state: str = "", label: str = "", limit: int | None = None,
        at: str = "",
    ) -> list[types.Workload]:  # fmt: skip
        """Workloads, newest first. `label`: NAME or NAME=VALUE. `at`: as they were, see `moment`."""
        query = {"project": project, "name": name, "state": state, "label": label, "at": at}
        return list(_first(self._pages("/v1/workloads", query, types.WorkloadPage, limit), limit))

    def workload(self, project: str, name: str, *, at: str = "") -> types.Workload:
        """A workload with its document and its first instances."""
        return self._get(_path(project, name), types.Workload, {"at": at})

    def instances(
        self, project: str, name: str, *, state: str = "", limit: int | None = None, at: str = ""
    ) -> list[types.Instance]:
        """The instances of a workload, those that never ran included."""
        pages = self._pages(f"{_path(project, name)}/instances", {"state": state, "at": at}, types.InstancePage, limit)
        return list(_first(pages, limit))

    def instance(self, project: str, name: str, index: int = 0, *, at: str = "") -> types.Instance:
        """An instance with its story and the decision that placed it."""
        return self._get(f"{_path(project, name)}/instances/{index}", types.Instance, {"at": at})

    def why(self, project: str, name: str, index: int | None = None, *, advice: bool = True) -> types.Why:
        """Why an instance is where it is, or why it waits. Without an index: the first that waits.

        Without advice the answer is short and quick: what would help and when it may start is left out.
        """
        query: Query = {"index": index, "advice": None if advice else False}
        return self._get(f"{_path(project, name)}/why", types.Why, query)

    def cancel(self, project: str, name: str, index: int | None = None) -> types.Workload:
        """Stop a workload or one instance; cancelling twice is fine."""
        return self._post(f"{_path(project, name)}/cancel", types.Workload, _chosen(index))

    def retry(self, project: str, name: str, index: int | None = None, *, failed: bool = False) -> types.Workload:
        """Run again what ended otherwise than well (`failed`: only what failed), or one instance however it ended."""
        chosen = {**_chosen(index), "failed": True} if failed else _chosen(index)
        return self._post(f"{_path(project, name)}/retry", types.Workload, chosen)

    # logs

    def log(self, project: str, name: str, index: int = 0, *, attempt: int = 0) -> bytes:
        """What an attempt has written so far; attempt 0 is the newest."""
        return b"".join(self.log_pieces(project, name, index, attempt=attempt))

    def log_pieces(
        self, project: str, name: str, index: int = 0, *, attempt: int = 0, offset: int = 0
    ) -> Iterator[bytes]:
        """The same piece by piece, for what does not fit into memory."""
        path = f"{_path(project, name)}/instances/{index}/log"
        while True:
            answer = self._transport.call("GET", path, {"attempt": attempt, "offset": offset})
            if answer.body:
                yield answer.body
            # What was read belongs to one attempt, also when the next one begins meanwhile.
            attempt = int(answer.headers.get("roost-log-attempt", attempt))
            offset += len(answer.body)
            if not answer.body or offset >= int(answer.headers.get("roost-log-size", 0)):
                return

    def follow_log(self, project: str, name: str, index: int = 0, *, attempt: int = 0) -> LogFollower:
        """What an instance writes, as it comes, over all attempts from this one on, until it is over."""
        path = f"{_path(project, name)}/instances/{index}/log/follow"
        return LogFollower(lambda last_id: self._transport.stream(path, {"attempt": attempt}, last_id))

    # nodes

    def nodes(self, *, status: str = "", at: str = "") -> list[types.Node]:
        """All nodes by name."""
        return list(self._pages("/v1/nodes", {"status": status, "at": at}, types.NodePage, None))

    def node(self, name: str, *, at: str = "") -> types.Node:
        """A node with what runs there and its story."""
        return self._get(f"/v1/nodes/{segment(name)}", types.Node, {"at": at})

    def remove_node(self, name: str) -> None:
        """Forget a node that is out of touch and holds nothing."""
        self._transport.call("DELETE", f"/v1/nodes/{segment(name)}")

    # what operators set

    def projects(self) -> list[setting_types.Project]:
        """All projects by name: those that have settings, and those that have workloads."""
        return list(self._pages("/v1/projects", {}, setting_types.ProjectPage, None))

    def project(self, name: str) -> setting_types.Project:
        """A project: its settings, what it holds, its share."""
        return self._get(f"/v1/projects/{segment(name)}", setting_types.Project)

    def set_project(
        self, name: str, *, weight: int = 1, quota: Amounts | None = None, borrow: bool = False, counted: bool = False
    ) -> setting_types.Project:
        """Set weight and quota (`{"cpu": 10, "memory": "4GiB", "instances": 5}`); what is left out gets its default."""
        body = {"weight": weight, "quota": quota or {}, "borrow": borrow, "counted": counted}
        return self._put(f"/v1/projects/{segment(name)}", setting_types.Project, body)

    def unset_project(self, name: str) -> None:
        """Forget the settings of a project; its workloads stay."""
        self._transport.call("DELETE", f"/v1/projects/{segment(name)}")

    def pools(self) -> list[setting_types.Pool]:
        """All pools by name: those that have nodes, and those that have settings."""
        return list(self._pages("/v1/pools", {}, setting_types.PoolPage, None))

    def reservations(self) -> list[setting_types.Reservation]:
        """All reservations by name."""
        return list(self._pages("/v1/reservations", {}, setting_types.ReservationPage, None))

    def reserve(
        self, name: str, project: str, *, nodes: Sequence[str] = (), count: int | None = None, pool: str = "",
        start: str | int | float | None = None, end: str | int | float | None = None,
    ) -> setting_types.Reservation:  # fmt: skip
        """Keep nodes for a project: these, or a count of them. Start and end: moments, or durations from now."""
        wanted = {"name": name, "project": project, "nodes": list(nodes), "pool": pool}
        given = {key: value for key, value in (("count", count), ("start", start), ("end", end)) if value is not None}
        return self._post("/v1/reservations", setting_types.Reservation, {**wanted, **given})

    def cancel_reservation(self, name: str) -> None:
        """Give the nodes of a reservation back to everybody."""
        self._transport.call("DELETE", f"/v1/reservations/{segment(name)}")

    # joining

    def create_join_token(
        self, *, pool: str = "", uses: int | None = 1, expires: str | int = "1h"
    ) -> types.NewJoinToken:
        """A token with which machines can become nodes; `uses`: None is any number."""
        body = {"pool": pool, "uses": "unlimited" if uses is None else uses, "expires": expires}
        return self._post("/v1/join-tokens", types.NewJoinToken, body)

    def join_tokens(self) -> list[types.JoinToken]:
        """Join tokens that can still be used; never their secrets."""
        return self._get("/v1/join-tokens", types.JoinTokenPage).items

    def revoke_join_token(self, id: str) -> None:
        """Make a join token useless; nodes that have joined with it stay."""
        self._transport.call("DELETE", f"/v1/join-tokens/{segment(id)}")

    # who may do what

    def whoami(self) -> access.Whoami:
        """Who the server takes you for, and what you may do."""
        return self._get("/v1/whoami", access.Whoami)

    def login(self) -> access.Login:
        """Where persons get an identity that the server believes. It needs no token."""
        return self._get("/v1/login", access.Login)

    def tokens(self) -> list[access.Token]:
        """All tokens that you may administrate, by name; never their secrets."""
        return list(self._pages("/v1/tokens", {}, access.TokenPage, None))

    def create_token(
        self, name: str, role: str, projects: Sequence[str], *, expires: str | int | float | None = None
    ) -> access.NewToken:
        """Create a token for projects (`["*"]`: everywhere). `expires`: `30d`, or `never`; its secret is told once."""
        given = {} if expires is None else {"expires": expires}
        body = {"name": name, "role": role, "projects": list(projects), **given}
        return self._post("/v1/tokens", access.NewToken, body)

    def rotate_token(
        self, name: str, *, overlap: str | int | float | None = None, expires: str | int | float | None = None
    ) -> access.NewToken:
        """Give a token a new secret; the old one stays good for `overlap`, an hour if nothing is said."""
        given = {key: value for key, value in (("overlap", overlap), ("expires", expires)) if value is not None}
        return self._post(f"/v1/tokens/{segment(name)}/rotate", access.NewToken, given)

    def revoke_token(self, name: str) -> None:
        """End a token at once."""
        self._transport.call("DELETE", f"/v1/tokens/{segment(name)}")

    def members(self, project: str) -> list[access.Member]:
        """The persons with a role in a project; `*`: everywhere."""
        return list(self._pages(f"/v1/projects/{segment(project)}/members", {}, access.MemberPage, None))

    def set_member(self, project: str, subject: str, role: str) -> access.Member:
        """Give a person (an e-mail address, or what the issuer calls it) a role in a project."""
        return self._put(f"/v1/projects/{segment(project)}/members/{segment(subject)}", access.Member, {"role": role})

    def remove_member(self, project: str, subject: str) -> None:
        """Take a person's role in a project away."""
        self._transport.call("DELETE", f"/v1/projects/{segment(project)}/members/{segment(subject)}")

    def audit(self, *, who: str = "", what: str = "", limit: int | None = None) -> list[access.Audit]:
        """Changes that were asked for and made, newest first."""
        return list(_first(self._pages("/v1/audit", {"who": who, "what": what}, access.AuditPage, limit), limit))

    # secrets

    def secrets(self, project: str) -> list[kept.Secret]:
        """The secrets of a project by name; never their values."""
        return list(self._pages(f"/v1/projects/{segment(project)}/secrets", {}, kept.SecretPage, None))

    def set_secret(self, project: str, name: str, value: bytes) -> kept.Secret:
        """Set a secret. Runs that begin from now on get this value."""
        body = {"base64": b64encode(value).decode()}
        return self._put(f"/v1/projects/{segment(project)}/secrets/{segment(name)}", kept.Secret, body)

    def remove_secret(self, project: str, name: str) -> None:
        """Forget a secret."""
        self._transport.call("DELETE", f"/v1/projects/{segment(project)}/secrets/{segment(name)}")

    def reseal_secrets(self) -> kept.Resealed:
        """Seal all secrets again with the server's newest key."""
        return self._post("/v1/secrets/reseal", kept.Resealed, {})

    # the whole

    def status(self) -> types.Status:
        """How the server stands, in numbers."""
        return self._get("/v1/status", types.Status)

    def follow_changes(
        self, *, since: int | None = None, kinds: Sequence[str] = (), workload: str = "", prefix: str = ""
    ) -> Follower:
        """Every commit from a revision (or from now) on, resumed when the connection breaks. See `changes`.

        `prefix`: only of workloads whose PROJECT/NAME begins so.
        """
        query: Query = {"since": since, "kind": kinds or None, "workload": workload, "prefix": prefix}
        return Follower(lambda last_id: self._transport.stream("/v1/changes", query, last_id))

    def changes(
        self, *, since: int | None = None, kinds: Sequence[str] = (), workload: str = ""
    ) -> Iterator[types.Change | types.Reset]:
        """Every change from a revision (or from now) on. After a Reset list again: something was missed."""
        with self.follow_changes(since=since, kinds=kinds, workload=workload) as follower:
            while True:
                event = follower.next()
                if event is not None and event.name in types.NEWS:
                    yield _decode(event.data.encode(), types.NEWS[event.name])

    def wait(
        self, keys: Sequence[tuple[str, str]], until: Until = "finished", timeout_s: float | None = None, *,
        any_of: bool = False,
    ) -> list[types.Workload]:  # fmt: skip
        """Wait until workloads (PROJECT, NAME) are finished, started or running; or one of them. Raises WaitTimedOut.

        With `any_of`: those that are by then, the one that ended first in front.
        """
        return wait_for(self, keys, until, timeout_s, any_of=any_of)

    def run_to_end(self, document: Document, timeout_s: float | None = None) -> types.Workload:
        """Submit a workload and wait until it is over."""
        workload = self.submit(document)
        self.wait([(workload.project, workload.name)], timeout_s=timeout_s)
        return self.workload(workload.project, workload.name)

    def page(self, project: str, name: str) -> types.WorkloadPage:
        """One workload, if it is there, and the revision as of which: changes can be followed from it."""
        answer = self._transport.call("GET", "/v1/workloads", {"project": project, "name": name})
        return _decode(answer.body, types.WorkloadPage)

    def _get(self, path: str, kind: type[T], query: Query | None = None) -> T:
        return _decode(self._transport.call("GET", path, query).body, kind)

    def _post(self, path: str, kind: type[T], body: Document) -> T:
        return _decode(self._transport.call("POST", path, None, _encode(body)).body, kind)

    def _put(self, path: str, kind: type[T], body: Document) -> T:
        return _decode(self._transport.call("PUT", path, None, _encode(body)).body, kind)

    def _pages(self, path: str, query: Mapping[str, str], kind: type[Any], limit: int | None) -> Iterator[Any]:
        after: str | int | None = None
        while True:
            asked: Query = {**query, "limit": min(limit or PAGE, PAGE), "after": after}
            page = self._get(path, kind, asked)
            yield from page.items
            after = page.next
            if after is None:
                return


def _path(project: str, name: str) -> str:
    return f"/v1/workloads/{segment(project)}/{segment(name)}"


def _chosen(index: int | None) -> Document:
    return {} if index is None else {"index": index}


def _first(items: Iterator[T], limit: int | None) -> Iterator[T]:
    for number, item in enumerate(items):
        if number == limit:
            return
        yield item


def _encode(body: Any) -> bytes:
    return msgspec.json.encode(body)


def _decode(body: bytes, kind: type[T]) -> T:
    return msgspec.json.decode(body, type=kind)
