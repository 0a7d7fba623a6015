"""The client: one namespace per noun, and in it one method per request, each with a typed answer."""

from roost.client import history, operators, wait, workloads
from roost.client.caches import Caches
from roost.client.files.calls import FileCalls, NamedFileCalls
from roost.client.namespace import Namespace
from roost.client.transport import Transport
from roost.client.tunnels import TunnelCalls
from roost.client.usage import UsageCalls
from roost.client.vms import VmCalls
from roost.schema.access.roles import LoginView, WhoamiView
from roost.schema.servers import StatusView


class Client(Namespace):
    """Calls one server, or one of several (URLs with commas between).

    Every method raises ApiError when the server refuses, Unreachable when there is none.
    """

    def __init__(self, url: str, token: str = "", ca: str = "") -> None:
        transport = Transport(url, token, ca)
        super().__init__(transport)
        self.url = url
        self.workloads = workloads.WorkloadCalls(transport)
        self.instances = workloads.InstanceCalls(transport)
        self.logs = workloads.LogCalls(transport)
        self.schedules = workloads.ScheduleCalls(transport)
        self.services = workloads.ServiceCalls(transport)
        self.vms = VmCalls(transport)
        self.files = FileCalls(transport)
        self.named_files = NamedFileCalls(transport)
        self.tunnels = TunnelCalls(transport)
        self.caches = Caches(transport)
        self.usage = UsageCalls(transport)
        self.changes = wait.ChangeCalls(transport)
        self.history = history.HistoryCalls(transport)
        self.events = history.EventCalls(transport)
        self.audit = history.AuditCalls(transport)
        self.nodes = operators.NodeCalls(transport)
        self.pools = operators.PoolCalls(transport)
        self.projects = operators.ProjectCalls(transport)
        self.reservations = operators.ReservationCalls(transport)
        self.join_tokens = operators.JoinTokenCalls(transport)
        self.tokens = operators.TokenCalls(transport)
        self.members = operators.MemberCalls(transport)
        self.blob_keys = operators.BlobKeyCalls(transport)
        self.secrets = operators.SecretCalls(transport)
        self.webhooks = operators.WebhookCalls(transport)
        self.templates = operators.TemplateCalls(transport)
        self.servers = operators.ServerCalls(transport)
        self.maintenance = operators.MaintenanceCalls(transport)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; the client can be used again."""
        self._transport.close()

    def whoami(self) -> WhoamiView:
        return self._get("/v1/whoami", WhoamiView)

    def login(self) -> LoginView:
        """The OpenID issuer. It needs no token."""
        return self._get("/v1/login", LoginView)

    def status(self) -> StatusView:
        return self._get("/v1/status", StatusView)
