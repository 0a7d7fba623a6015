"""The client: one namespace per noun, and in it one method per request, each with a typed answer."""

from roost.client.history import AuditCalls, EventCalls, HistoryCalls
from roost.client.namespace import Namespace, Noun
from roost.client.operators import (
    JoinTokenCalls,
    MaintenanceCalls,
    NodeCalls,
    PoolCalls,
    ReservationCalls,
    SecretCalls,
    ServerCalls,
    TokenCalls,
    WebhookCalls,
)
from roost.client.transport import Transport
from roost.client.workloads import ChangeCalls, InstanceCalls, LogCalls, ScheduleCalls, ServiceCalls, WorkloadCalls
from roost.schema.access import LoginView, MemberPage, MemberView, WhoamiView
from roost.schema.projects import ProjectPage, ProjectView
from roost.schema.servers import StatusView


class Client(Namespace):
    """Calls one server, or one of several (URLs with commas between).

    Every method raises ApiError when the server refuses, Unreachable when there is none.
    """

    def __init__(self, url: str, token: str = "", ca: str = "") -> None:
        transport = Transport(url, token, ca)
        super().__init__(transport)
        self.url = url
        self.workloads = WorkloadCalls(transport)
        self.instances = InstanceCalls(transport)
        self.logs = LogCalls(transport)
        self.schedules = ScheduleCalls(transport)
        self.services = ServiceCalls(transport)
        self.changes = ChangeCalls(transport)
        self.history = HistoryCalls(transport)
        self.events = EventCalls(transport)
        self.audit = AuditCalls(transport)
        self.nodes = NodeCalls(transport)
        self.pools = PoolCalls(transport)
        self.projects = Noun(transport, "/v1/projects/{}", ProjectView, ProjectPage)
        self.reservations = ReservationCalls(transport)
        self.join_tokens = JoinTokenCalls(transport)
        self.tokens = TokenCalls(transport)
        self.members = Noun(transport, "/v1/projects/{}/members/{}", MemberView, MemberPage)
        self.secrets = SecretCalls(transport)
        self.webhooks = WebhookCalls(transport)
        self.servers = ServerCalls(transport)
        self.maintenance = MaintenanceCalls(transport)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the client can be used again."""
        self._transport.close()

    def whoami(self) -> WhoamiView:
        """Your principal and your roles."""
        return self._get("/v1/whoami", WhoamiView)

    def login(self) -> LoginView:
        """The OpenID issuer. It needs no token."""
        return self._get("/v1/login", LoginView)

    def status(self) -> StatusView:
        """Version, revision and counts of the server."""
        return self._get("/v1/status", StatusView)
