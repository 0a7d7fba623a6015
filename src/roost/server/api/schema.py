"""Schema: the description of the API (OpenAPI 3.1), made from the handlers when it is first asked for."""

from typing import Any

import msgspec
from litestar import Request, Router
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme

from roost import __version__
from roost.model import limits
from roost.model.document import Document
from roost.model.joining import Credential, JoinRequest
from roost.server.api.audit import AuditPage
from roost.server.api.errors import ErrorView
from roost.server.api.events import EventPage
from roost.server.api.health import StatusView
from roost.server.api.history import LifePage, MomentView, OverInstancePage, OverPage
from roost.server.api.instances import InstancePage
from roost.server.api.join import AuthorityView, Inviting, JoinTokenPage
from roost.server.api.maintenance import Maintaining
from roost.server.api.members import MemberPage, Membership
from roost.server.api.nodes import Draining, DrainPlanView, NodePage
from roost.server.api.plans import PlanView
from roost.server.api.pools import Marking, PoolPage, PoolSettings
from roost.server.api.projects import ProjectPage, ProjectSettings
from roost.server.api.reservations import ReservationPage, Reserving
from roost.server.api.schedules import SchedulePage, ScheduleView
from roost.server.api.secrets import SecretPage, SecretValue
from roost.server.api.services import ServicePage, ServiceView
from roost.server.api.tokens import Creating, Rotating, TokenMade, TokenPage
from roost.server.api.versions import Back, VersionPage
from roost.server.api.whoami import LoginView, WhoamiView
from roost.server.api.workloads import Accepted, Again, Chosen, WorkloadPage
from roost.server.join import JoinTokenMade
from roost.server.secrets import Resealed
from roost.server.views import InstanceDetail, NodeDetail, WorkloadDetail
from roost.server.why import WhyView

BODIES = (
    Document,
    Again,
    Back,
    Chosen,
    Creating,
    Draining,
    Inviting,
    JoinRequest,
    Maintaining,
    Marking,
    Membership,
    PoolSettings,
    ProjectSettings,
    Reserving,
    Rotating,
    SecretValue,
)  # what handlers read themselves
VIEWS = (Accepted, AuditPage, AuthorityView, Credential, ErrorView, EventPage, InstanceDetail, InstancePage,
         JoinTokenMade, DrainPlanView, JoinTokenPage, LifePage, LoginView, MemberPage, MomentView, NodeDetail, NodePage,
         OverInstancePage, OverPage, PlanView, PoolPage, ProjectPage, Resealed, ReservationPage,
         SchedulePage, ScheduleView, SecretPage,
         ServicePage, ServiceView, StatusView, TokenMade, TokenPage, VersionPage, WhoamiView, WhyView,
         WorkloadDetail, WorkloadPage)  # fmt: skip

NAME = {"pattern": "^[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?$", "minLength": 1, "maxLength": limits.NAME_LENGTH_MAX}
CHECKED: dict[str, dict[str, dict[str, Any]]] = {  # what is checked beyond types
    "Document": {
        "name": NAME,
        "project": NAME,
        "count": {"minimum": 0, "maximum": limits.COUNT_JOB_MAX},
        "priority": {"minimum": 0, "maximum": 100},
        "steps": {"minItems": 1, "maxItems": limits.STEPS_MAX},
    },
    "ProjectSettings": {
        "weight": {"minimum": 1, "maximum": limits.SHARE_WEIGHT_MAX},
        "quota": {"maxProperties": limits.RESOURCE_KINDS_MAX, "propertyNames": NAME},
    },
    "PoolSettings": {
        "overcommit": {
            "propertyNames": {"enum": ["cpu", "memory"]},
            "additionalProperties": {"type": "number", "minimum": 1, "maximum": limits.OVERCOMMIT_MAX / 100},
        },
    },
    "Reserving": {
        "name": NAME,
        "project": NAME,
        "nodes": {"maxItems": limits.RESERVED_NODES_MAX, "uniqueItems": True},
    },
}


def schema_config() -> OpenAPIConfig:
    """How the description is made and where it is served: /schema/openapi.json."""
    return OpenAPIConfig(
        title="Roost",
        version=__version__,
        description="Places work on machines, keeps it running, and can always say why.",
        components=Components(security_schemes={"token": SecurityScheme(type="http", scheme="bearer")}),
        security=[{"token": []}],
        use_handler_docstrings=True,
        render_plugins=[_Described()],
        openapi_router=_OnlyJson("/schema", route_handlers=[], include_in_schema=False),
    )


class _Described(JsonRenderPlugin):
    """The description with what handlers read themselves, and in our own words. Made once."""

    page = b""

    def render(self, request: "Request[Any, Any, Any]", openapi_schema: dict[str, Any]) -> bytes:
        if not self.page:
            self._complete(openapi_schema)
            self.page = self.render_json(request, openapi_schema)
        return self.page

    def _complete(self, openapi_schema: dict[str, Any]) -> None:
        _, parts = msgspec.json.schema_components((*BODIES, *VIEWS), ref_template="#/components/schemas/{name}")
        for name, fields in CHECKED.items():
            for field, more in fields.items():
                parts[name]["properties"][field].update(more)
        openapi_schema["components"]["schemas"].update(parts)
        for operations in openapi_schema["paths"].values():
            for operation in operations.values():
                operation["summary"], _, operation["description"] = operation["description"].partition("\n")


class _OnlyJson(Router):
    """Without the page of HTML that the framework shows at other paths."""

    def register(self, value: Any) -> Any:
        if getattr(getattr(value, "fn", None), "__name__", "") == "handle_schema_path_not_found":
            return []
        return super().register(value)
