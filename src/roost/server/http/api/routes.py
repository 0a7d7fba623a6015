"""Routes: the application, made from the table of operations.

A parameter of an operation is part of its path, or its body (a struct), or else a query.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from inspect import Parameter, Signature, isawaitable, signature
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints
from urllib.parse import parse_qsl

import msgspec
from litestar import HttpMethod, Litestar, Request, Response, route
from litestar.datastructures import State
from litestar.exceptions import HTTPException
from litestar.handlers import BaseRouteHandler, HTTPRouteHandler
from litestar.params import HeaderParameter, PathParameter, QueryParameter
from litestar.routes import HTTPRoute

from roost.model.errors import Invalid, RoostError
from roost.model.records.enrolment import JoinRequest
from roost.model.spec.document import Document
from roost.model.spec.reading import is_struct
from roost.schema.pipelines.runs import PipelineStart
from roost.server.auth.shares import Shares
from roost.server.http.api.answers import ANSWERS, AS_OF, OF_VIEW, STREAMS_MAX, TRANSFERS_MAX, Answering
from roost.server.http.api.bodies import read_documents, read_fields, read_raw, taking, taking_raw
from roost.server.http.api.context import ApiRequest, dispatcher_of, permit_request, principal_of
from roost.server.http.api.errors import SPELT, answer_error, refusals
from roost.server.http.api.probes import PROBES, drain
from roost.server.http.api.schema import schema_config
from roost.server.operations.context import AsOf
from roost.server.operations.dispatch import Dispatcher
from roost.server.operations.fleet import nodes
from roost.server.operations.permit import Rule, Scope
from roost.server.operations.table import RULES
from roost.server.operations.work.documents import BATCH_MAX, Documents
from roost.server.operations.work.files import RawBody
from roost.server.operations.work.pipelines import start_pipeline
from roost.server.operations.work.workloads import submit

CONSTRAINTS = ("ge", "le", "max_length", "pattern", "description")


def make_api(dispatcher: Dispatcher) -> Litestar:
    """The API of a server. Callers are authenticated before (auth); their permissions are checked here."""
    return Litestar(
        HANDLERS,
        state=State(
            {
                "dispatcher": dispatcher,
                "streams": Shares(STREAMS_MAX, "streams"),
                "transfers": Shares(TRANSFERS_MAX, "transfers of files"),
            }
        ),
        guards=[permit_request],
        before_request=refuse_unknown_questions,
        exception_handlers={RoostError: answer_error, HTTPException: answer_error, Exception: answer_error},
        openapi_config=schema_config([operation for operation, rule in RULES.items() if rule.route]),
        logging_config=None,
        debug=False,
    )


def handler_of(operation: Callable[..., Any], rule: Rule) -> HTTPRouteHandler:
    """The handler of an operation: decode the request, perform the operation, encode the answer."""
    method, path = rule.route.split()
    hints = get_type_hints(operation, include_extras=True)
    names = list(signature(operation).parameters)[1:]
    in_path = re.findall(r"{(\w+)}", path)
    body = next((name for name in names if name not in in_path and is_struct(hints[name])), "")
    answering = _answering(operation, hints["return"])
    fields: Any = hints.get(body)
    is_raw = fields is RawBody
    is_required = method == "PUT" or fields is Documents
    required = is_required or bool(body) and any(field.required for field in msgspec.structs.fields(fields))

    async def handle(request: ApiRequest, **given: Any) -> Any:
        if is_raw:
            pass  # it was read before
        elif fields is Documents:
            given[body] = await read_documents(request)
        elif fields is JoinRequest:
            with dispatcher_of(request).context.joining.reading(principal_of(request).where):
                given[body] = await read_fields(request, fields, required=required)
        elif body:
            given[body] = await read_fields(request, fields, required=required)
        if answering.resume is not None:
            answering.resume(given.pop("last"), given)
        arguments = [given[name] for name in names]
        answer = await dispatcher_of(request).perform(principal_of(request), operation, *arguments)
        made = answering.respond(request, answer)
        return await made if isawaitable(made) else made

    async def handle_raw(request: ApiRequest, **given: Any) -> Any:
        """A large body counts for as long as it is in memory."""
        with request.app.state["transfers"].one(principal_of(request)):
            given[body] = await read_raw(request)
            return await handle(request, **given)

    parameters = [_parameter(operation, name, hints[name], name in in_path) for name in names if name != body]
    if answering.resume is not None:
        last = Annotated[str | None, HeaderParameter(name=answering.header)]
        parameters.append(Parameter("last", Parameter.KEYWORD_ONLY, default=None, annotation=last))
    takes: Any = taking(fields, required=required) if body and fields is not Documents else None
    if fields is Documents:
        takes = taking(PipelineStart) if operation is start_pipeline else _documents(is_one=operation is submit)
    elif is_raw:
        takes = taking_raw()
    parameters.insert(0, Parameter("request", Parameter.POSITIONAL_OR_KEYWORD, annotation=ApiRequest))
    described: Any = handle_raw if is_raw else handle
    described.__name__, described.__doc__ = operation.__name__, operation.__doc__
    described.__signature__ = Signature(parameters, return_annotation=answering.returns)
    described.__annotations__ = {item.name: item.annotation for item in parameters} | {"return": answering.returns}
    return route(
        re.sub(r"{(\w+)}", lambda part: f"{{{part[1]}:{hints[part[1]].__name__}}}", path),
        http_method=HttpMethod(method),
        operation_id=operation.__name__,
        status_code=204 if hints["return"] is type(None) else rule.status,
        responses={**answering.responses, **refusals(*_statuses(rule, bool(body)))},
        response_headers=answering.headers,
        media_type=answering.media_type,
        security=[{}] if rule.scope is Scope.OPEN else None,
        **({"operation_class": takes} if body else {}),
    )(described)


def _documents(*, is_one: bool) -> Any:
    return taking(Document, many=0 if is_one else BATCH_MAX)


def _answering(operation: Callable[..., Any], returned: Any) -> Answering:
    if operation in ANSWERS:
        return ANSWERS[operation]
    if get_origin(returned) is AsOf:
        return AS_OF._replace(returns=Response[get_args(returned)[0]])  # type: ignore[misc]
    return OF_VIEW._replace(returns=returned)


def _parameter(operation: Callable[..., Any], name: str, hint: Any, in_path: bool) -> Parameter:
    default = signature(operation).parameters[name].default
    if in_path:
        return Parameter(name, Parameter.KEYWORD_ONLY, annotation=Annotated[hint, PathParameter()])
    base, constraints = _plain(hint)
    query = QueryParameter(name=SPELT.get(name), **constraints)
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[base, query])


def _plain(hint: Any) -> tuple[Any, dict[str, Any]]:
    """A type without its constraints, and these."""
    if get_origin(hint) in (Union, UnionType):
        parts = [_plain(part) for part in get_args(hint)]
        constraints = {name: value for _, found in parts for name, value in found.items()}
        return Union[tuple(base for base, _ in parts)], constraints  # noqa: UP007
    if get_origin(hint) is not Annotated:
        return hint, {}
    base, meta = get_args(hint)[:2]
    return base, {name: value for name in CONSTRAINTS if (value := getattr(meta, name)) is not None}


def _statuses(rule: Rule, has_body: bool) -> set[int]:
    statuses = {404, 409, 422, 503} | ({413, 415} if has_body else set())
    statuses |= {429} if rule.route == "POST /v1/join" else set()
    return statuses if rule.scope in (Scope.OPEN, Scope.KNOWN) else statuses | {403}


async def refuse_unknown_questions(request: Request[Any, Any, Any]) -> None:
    """Refuse a misspelt parameter: ignoring it would answer another question."""
    asked = request.scope["query_string"]
    if not asked:
        return
    known = _questions(request.route_handler)
    for name, _ in parse_qsl(asked.decode("latin-1"), keep_blank_values=True):
        if name not in known:
            others = f"there is no such parameter here; known are {', '.join(known)}"
            raise Invalid(name[:100], others if known else "no parameters are known here")


@lru_cache(maxsize=256)  # as many as there are handlers
def _questions(handler: BaseRouteHandler) -> tuple[str, ...]:
    known = {name: field.kwarg_definition for name, field in handler.parsed_fn_signature.parameters.items()}
    return tuple(item.name or name for name, item in known.items() if isinstance(item, QueryParameter))


def _options(handlers: list[HTTPRouteHandler]) -> HTTPRouteHandler:
    """Methods of a path, for paths with several. The framework names only the first."""
    paths = [path for handler in handlers for path in handler.paths]

    @route(
        sorted({path for path in paths if paths.count(path) > 1}),
        http_method=HttpMethod.OPTIONS,
        operation_id="options",
        include_in_schema=False,
    )
    async def options(request: Request[Any, Any, Any]) -> Response[None]:
        here = [item for item in request.app.routes if item.path_format == request.scope["path_template"]]
        methods = {method for item in here if isinstance(item, HTTPRoute) for method in item.methods}
        return Response(None, status_code=204, headers={"allow": ", ".join(sorted(methods))})

    return options


_HANDLERS: list[HTTPRouteHandler] = [
    drain if operation is nodes.drain else handler_of(operation, rule)
    for operation, rule in RULES.items()
    if rule.route
]
HANDLERS = [_options(_HANDLERS), *_HANDLERS, *PROBES]
