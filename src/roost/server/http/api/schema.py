"""Schema: the description of the API (OpenAPI 3.1), made from the handlers when it is first asked for."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
from litestar import Request, Router
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme

from roost import __version__
from roost.model import limits
from roost.model.spec.document import Document
from roost.model.spec.reading import is_struct
from roost.schema.errors import ErrorView
from roost.schema.nodes import DrainPlanView
from roost.schema.pipelines.runs import PipelineStart
from roost.server.operations.context import AsOf
from roost.server.operations.work.documents import Documents
from roost.server.operations.work.files import RawBody
from roost.server.operations.work.logs import LogSlice

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


def schema_config(operations: Iterable[Callable[..., Any]]) -> OpenAPIConfig:
    return OpenAPIConfig(
        title="Roost",
        version=__version__,
        description="Schedules work on machines, keeps it running, and explains every decision.",
        components=Components(security_schemes={"token": SecurityScheme(type="http", scheme="bearer")}),
        security=[{"token": []}],
        use_handler_docstrings=True,
        render_plugins=[_Described(operations)],
        openapi_router=_OnlyJson("/schema", route_handlers=[], include_in_schema=False),
    )


class _Described(JsonRenderPlugin):
    """The description with the structs that operations take and answer. Made once."""

    def __init__(self, operations: Iterable[Callable[..., Any]]) -> None:
        super().__init__()
        self.page = b""
        self._operations = list(operations)

    def render(self, request: "Request[Any, Any, Any]", openapi_schema: dict[str, Any]) -> bytes:
        if not self.page:
            self._complete(openapi_schema)
            self.page = self.render_json(request, openapi_schema)
        return self.page

    def _complete(self, openapi_schema: dict[str, Any]) -> None:
        found = {struct for operation in self._operations for struct in _structs(operation)}
        structs = {Document, PipelineStart, DrainPlanView, ErrorView, *found}
        _, parts = msgspec.json.schema_components(structs, ref_template="#/components/schemas/{name}")
        for name, fields in CHECKED.items():
            for field, more in fields.items():
                parts[name]["properties"][field].update(more)
        openapi_schema["components"]["schemas"].update(parts)
        for operations in openapi_schema["paths"].values():
            for operation in operations.values():
                operation["summary"], _, operation["description"] = operation["description"].partition("\n")


def _structs(operation: Callable[..., Any]) -> Iterator[type[msgspec.Struct]]:
    for hint in get_type_hints(operation).values():
        view = get_args(hint)[0] if get_origin(hint) is AsOf else hint
        if is_struct(view) and view not in (Documents, LogSlice, RawBody):
            yield view


class _OnlyJson(Router):
    """Without the page of HTML that the framework shows at other paths."""

    def register(self, value: Any) -> Any:
        if getattr(getattr(value, "fn", None), "__name__", "") == "handle_schema_path_not_found":
            return []
        return super().register(value)
