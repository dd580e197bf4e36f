"""What an application adds to the HTTP server: routes, and listeners for webhooks.

A forge posts to one path, however many applications listen to it: each application whose secrets
fit the signature gets the delivery once. The request only saves it; the work comes later.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from towpath.calls.errors import SignatureRefused
from towpath.errors import TowpathError
from towpath.forges.facts import ForgeEvent
from towpath.forges.registry import FORGES
from towpath.forges.spec import ForgeSpec
from towpath.ledger.keys.key import KeyInfo
from towpath.web.audit import not_audited
from towpath.web.bodies import Deliveries, direct_app
from towpath.web.fields import WEBHOOKS, Answer
from towpath.web.problems import Refused, documented

SHARED = tuple(forge.name for forge in FORGES)
"""The webhooks that all applications may listen to."""


class WebhookListener(msgspec.Struct, frozen=True, kw_only=True):
    """How an application reads and saves the deliveries at a path."""

    path: str
    """Below `/api/v1/webhooks/`: the name of a forge, or a path below the application's name."""
    secrets: str
    """The option with the signing secrets; without any, the application does not listen."""
    largest: str = ""
    """The option with the maximum size of a delivery in bytes; empty = that of any body."""
    read: Callable[..., Any]
    """`(headers, body, *, secrets)`: returns the parsed delivery. Raises SignatureRefused."""
    take: Callable[[Any, Any], Coroutine[Any, Any, Answer | msgspec.Struct]]
    """`(service, parsed delivery)`: saves the delivery. The same delivery may come again."""
    answer: Any
    """The type of what `take` returns, for OpenAPI; it may return a struct with the same fields."""
    signature: str
    """The header with the signature."""
    signed: str
    """A sentence about that header."""
    headers: Mapping[str, str]
    """All headers that are read, each with a sentence."""
    about: str
    """The description of the path in OpenAPI."""


def forge_listener(
    forge: ForgeSpec,
    *,
    application: str,
    events: Sequence[ForgeEvent],
    repeated: str,
    read: Callable[..., Any],
    take: Callable[[Any, Any], Coroutine[Any, Any, Answer | msgspec.Struct]],
    answer: Any,
    about: str,
) -> WebhookListener:
    """The listener of *application* for the webhooks of *forge* about *events*.

    Its options have `<forge>_secrets` and `delivery`. *repeated* says what a repeated delivery is.
    """
    option = f"{forge.name}_secrets"
    names = [f"`{name}`" for name in forge.event_names(events)]
    listed = f"{', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else names[0]
    return WebhookListener(
        path=forge.name,
        secrets=option,
        largest="delivery",
        read=read,
        take=take,
        answer=answer,
        signature=next(iter(forge.signature_headers)),
        signed=forge.signature,
        headers={
            forge.event_header: f"{listed}; others are ignored.",
            forge.delivery_header: f"The delivery's id; a repeated id {repeated}.",
            **{
                header: sentence.format(secrets=f"{application}.{option}")
                for header, sentence in forge.signature_headers.items()
            },
        },
        about=about,
    )


class ApplicationRoutes(msgspec.Struct, frozen=True, kw_only=True):
    """The paths of an application. Each route needs a scope (`scoped`), unless it is open."""

    routers: tuple[APIRouter, ...] = ()
    tags: Mapping[str, str] = {}
    """The descriptions of its tags in OpenAPI."""
    open: tuple[str, ...] = ()
    """Which of its own paths need no key; `OPTIONS /path` = only with that method."""
    listeners: tuple[WebhookListener, ...] = ()
    schemas: Mapping[str, Any] = {}
    """Schemas that OpenAPI needs beside the types of its routes, by name: raw bodies."""
    origins: Mapping[str, str] = {}
    """By prefix of paths: the option that lists the origins whose pages may use them (CORS)."""
    exposed: tuple[str, ...] = ()
    """Response headers that these pages may read, beside the usual ones."""
    credentials: Mapping[str, Callable[[Any, Scope, str], Awaitable[KeyInfo | None]]] = {}
    """Checks of the credentials that it issues, by their prefix: `(service, scope, credential)`,
    the rest as `auth.CredentialCheck`."""


_EXPOSED = ("*", "Location", "Retry-After", "ETag", "Content-Range")
"""The response headers that pages may read: all, and some by name for browsers that do not know
`*`."""


class CrossOriginRule(NamedTuple):
    """Which pages may use some paths, and what they may read of the responses."""

    origins: Sequence[str]
    exposed: Sequence[str] = ()
    """Response headers, beside the usual ones."""


class CrossOrigin:
    """ASGI middleware: pages of other origins may use the paths that allow them.

    It runs before the check of keys: a browser's preflight request has no key.
    """

    def __init__(self, app: ASGIApp, rules: Mapping[str, CrossOriginRule]) -> None:
        self._app = app
        self._rules = {
            path: CORSMiddleware(
                app,
                allow_origins=list(rule.origins),
                allow_methods=["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE"],
                allow_headers=["*"],
                expose_headers=[*_EXPOSED, *rule.exposed],
                max_age=3600,
            )
            for path, rule in rules.items()
            if rule.origins
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            for path, allowing in self._rules.items():
                if scope["path"].startswith(path):
                    await allowing(scope, receive, send)
                    return
        await self._app(scope, receive, send)


class Listening(NamedTuple):
    """A listener, with its application and the secrets from the settings."""

    application: str
    listener: WebhookListener
    secrets: Sequence[str]


def path_of(listener: WebhookListener) -> str:
    """The path of the listener's deliveries."""
    return f"{WEBHOOKS}{listener.path}"


def scheme_of(listener: WebhookListener) -> str:
    """The name of its signature in OpenAPI's security schemes."""
    return listener.path.replace("/", "-")


def router_of(listening: Sequence[Listening], deliveries: Deliveries) -> APIRouter:
    """The paths of all listeners."""
    router = APIRouter(route_class=_RawRoute)
    for path in dict.fromkeys(path_of(each.listener) for each in listening):
        here = [each for each in listening if path_of(each.listener) == path]
        answers: Any = here[0].listener.answer
        for other in here[1:]:
            answers |= other.listener.answer
        router.add_api_route(
            path,
            _Webhook(here, deliveries).deliver,
            methods=["POST"],
            name=path.rpartition("/")[2],
            tags=[each.application for each in here],
            description="\n\n".join(each.listener.about for each in here),
            status_code=202,
            response_model=answers if len(here) == 1 else answers | dict[str, answers],
            responses=documented(404),
            openapi_extra=_openapi_extra([each.listener for each in here]),
        )
    return router


class _RawRoute(APIRoute):
    """A route whose function gets the plain request, without FastAPI's dependencies.

    Deliveries come in bursts, and the dependencies and their stacks would take 15 µs of each.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.app = direct_app(self.endpoint)


class _Webhook:
    """The route of a path, with its listeners."""

    def __init__(self, listening: Sequence[Listening], deliveries: Deliveries) -> None:
        self._all, self._deliveries = listening, deliveries
        self._listening = [each for each in listening if each.secrets]

    @not_audited("a delivery has no key; what it asks for is in the application's rows")
    async def deliver(self, request: Request) -> Response:
        """Give the delivery to each listener whose secrets fit. If some fail, raise the first error
        after all have had it: then the forge sends the delivery again, to all.
        """
        if not self._listening:
            raise self._not_configured()
        async with self._deliveries.read(request.scope, request.receive) as body:
            if body is None:
                return Response(status_code=400)  # not sent: the client disconnected
            found = self._read(request.headers, body)
        answers: dict[str, Answer | msgspec.Struct] = {}
        failed: list[TowpathError] = []
        for each, what in found:
            try:
                if isinstance(what, TowpathError):
                    raise what
                service = request.app.state.services[each.application]
                answers[each.application] = await each.listener.take(service, what)
            except TowpathError as error:
                failed.append(error)
        if failed:
            raise failed[0]
        return Response(self._combine_answers(answers), 202, media_type="application/json")

    def _read(self, headers: Mapping[str, str], body: bytes) -> list[tuple[Listening, Any]]:
        """The parsed delivery, or the error, of each listener whose secrets fit. Raises
        SignatureRefused if none do.
        """
        found: list[tuple[Listening, Any]] = []
        refused: list[SignatureRefused] = []
        for each in self._listening:
            try:
                found.append((each, each.listener.read(headers, body, secrets=each.secrets)))
            except SignatureRefused as error:
                refused.append(error)
            except TowpathError as error:
                found.append((each, error))
        if not found:
            raise refused[0]
        return found

    def _combine_answers(self, answers: Mapping[str, Answer | msgspec.Struct]) -> bytes:
        """The body of the response: the answer of the only application that listens, or all answers
        by application. An application without secrets does not listen.
        """
        parts = {name: _encoded(answer) for name, answer in answers.items()}
        if len(self._listening) == 1:
            return next(iter(parts.values()))
        return msgspec.json.encode({name: msgspec.Raw(part) for name, part in parts.items()})

    def _not_configured(self) -> Refused:
        names = [
            f"TOWPATH_{listening.application}__{listening.listener.secrets}".upper()
            for listening in self._all
        ]
        return Refused(
            404,
            "webhook_not_configured",
            f"this server accepts no webhooks from {self._all[0].listener.path}",
            remedy=f"Set {' or '.join(names)} to the webhook's secret.",
        )


def _encoded(answer: Answer | msgspec.Struct) -> bytes:
    if isinstance(answer, msgspec.Struct):
        return msgspec.json.encode(answer)
    return answer.model_dump_json().encode()


def _openapi_extra(listeners: Sequence[WebhookListener]) -> dict[str, Any]:
    """Body and headers for OpenAPI: FastAPI does not know them, because the route reads them."""
    content = {"schema": {"$ref": "#/components/schemas/Delivery"}}
    headers: dict[str, str] = {}
    for listener in reversed(listeners):
        headers = {**listener.headers, **headers}
    return {
        "requestBody": {"required": True, "content": {"application/json": content}},
        "parameters": [
            {"name": name, "in": "header", "description": about, "schema": {"type": "string"}}
            for name, about in headers.items()
        ],
    }
