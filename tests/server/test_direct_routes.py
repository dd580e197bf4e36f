"""A route that FastAPI describes but does not call answers as if FastAPI called it."""

from typing import Annotated, Any

import httpx
import pytest
from fastapi import Depends, FastAPI, Request, Response
from fastapi.routing import APIRoute

from tests.server.in_process import client_of, key_of
from tests.server.messaging import HELLO
from towpath.apps.messages.http import CanSend, MessageIn, router, send
from towpath.web.auth import Key
from towpath.web.bodies import BodyRoute, DirectRoute

DIRECT, CALLED_BY_FASTAPI = "/api/v1/message", "/api/v1/called-by-fastapi"
JSON = {"Content-Type": "application/json"}
BODIES = {
    "a message": httpx.Request("POST", "/", json={**HELLO, "client_message_id": "one"}).content,
    "nothing": b"",
    "null": b"null",
    "a list": b"[]",
    "a number": b"1",
    "not JSON": b"{",
    "no field": b"{}",
    "an unknown field": b'{"user": "ann"}',
    "values of other types": b'{"user_id": 1, "org_id": null, "message": [], "client_id": {}}',
    "an empty text": httpx.Request("POST", "/", json={**HELLO, "message": ""}).content,
    "too many fields": httpx.Request("POST", "/", json=dict.fromkeys(map(str, range(65)))).content,
    "a name that is none": httpx.Request("POST", "/", json={**HELLO, "user_id": "a\n"}).content,
    "nested too deep": b"[" * 65 + b"]" * 65,
}


@pytest.mark.parametrize("scope", ["submit", "read"])
@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
async def test_a_direct_route_answers_like_a_route_that_fastapi_calls(
    app: FastAPI, body: bytes, scope: str
) -> None:
    app.router.routes.insert(0, BodyRoute(CALLED_BY_FASTAPI, send, methods=["POST"]))
    async with client_of(app, await key_of(app, scope)) as client:
        await client.post(DIRECT, content=body, headers=JSON)
        answers = [
            await client.post(path, content=body, headers=JSON)
            for path in (CALLED_BY_FASTAPI, DIRECT)
        ]
    called, direct = [
        (answer.status_code, answer.headers.multi_items(), answer.content) for answer in answers
    ]
    assert direct == called


@pytest.mark.parametrize(
    ("content", "headers"),
    [
        (b"user_id=ann", {"Content-Type": "application/x-www-form-urlencoded"}),
        (b"{}", {"Content-Type": "application/json", "Content-Encoding": "gzip"}),
        (b"{}", {}),
    ],
)
async def test_a_direct_route_refuses_the_same_types(
    app: FastAPI, content: bytes, headers: dict[str, str]
) -> None:
    app.router.routes.insert(0, BodyRoute(CALLED_BY_FASTAPI, send, methods=["POST"]))
    async with client_of(app, await key_of(app, "submit")) as client:
        answers = [
            await client.post(path, content=content, headers=headers)
            for path in (CALLED_BY_FASTAPI, DIRECT)
        ]
    assert [answer.status_code for answer in answers] == [415, 415]
    assert answers[0].json() == answers[1].json()


def test_messages_are_sent_to_a_direct_route() -> None:
    [route] = [route for route in router.routes if getattr(route, "endpoint", None) is send]
    assert isinstance(route, DirectRoute)


async def of_the_key(key: Key) -> str:
    return key.id


async def with_a_parameter(body: MessageIn, key: CanSend, size: int = 1) -> Response:
    raise NotImplementedError


async def with_the_request(body: MessageIn, key: CanSend, request: Request) -> Response:
    raise NotImplementedError


async def with_a_dependency_that_has_one(
    body: MessageIn, id: Annotated[str, Depends(of_the_key)]
) -> Response:
    raise NotImplementedError


async def with_two_bodies(body: MessageIn, other: MessageIn) -> Response:
    raise NotImplementedError


async def without_a_body(key: CanSend) -> Response:
    raise NotImplementedError


@pytest.mark.parametrize(
    "endpoint",
    [
        with_a_parameter,
        with_the_request,
        with_a_dependency_that_has_one,
        with_two_bodies,
        without_a_body,
    ],
)
def test_a_function_with_other_parameters_is_refused_as_a_direct_route(endpoint: Any) -> None:
    APIRoute("/here", endpoint, methods=["POST"])
    with pytest.raises(TypeError, match="/here takes more than a body"):
        DirectRoute("/here", endpoint, methods=["POST"])


def test_a_dependency_of_the_router_is_refused_for_a_direct_route() -> None:
    """FastAPI would call it before the function; here nobody does."""
    guards = [Depends(of_the_key)]
    APIRoute("/here", send, methods=["POST"], dependencies=guards)
    with pytest.raises(TypeError, match="/here takes more than a body"):
        DirectRoute("/here", send, methods=["POST"], dependencies=guards)
