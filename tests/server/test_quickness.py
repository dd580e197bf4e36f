"""Properties that make requests fast, and that would be lost unnoticed without tests."""

import inspect
import socket
from collections.abc import Iterator

import pytest
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute, APIRouter

from towpath.apps.application import applications
from towpath.server.routes import health, jobs, queues, work
from towpath.server.run import listen

ROUTERS = [
    *(module.router for module in (health, jobs, queues, work)),
    queues.events_router,
    *(
        router
        for application in applications()
        for router in application.load(application.http).routers
    ),
]


def all_of(dependant: Dependant) -> Iterator[Dependant]:
    yield dependant
    for other in dependant.dependencies:
        yield from all_of(other)


@pytest.mark.parametrize("router", ROUTERS)
def test_no_request_uses_a_thread(router: APIRouter) -> None:
    """FastAPI runs plain functions in threads: the way there and back costs a whole request."""
    called = [
        dependency.call
        for route in router.routes
        if isinstance(route, APIRoute)
        for dependency in all_of(route.dependant)
    ]
    assert called
    assert [function for function in called if not inspect.iscoroutinefunction(function)] == []


def test_the_body_of_an_answer_is_sent_without_waiting_for_the_head_to_be_acknowledged() -> None:
    with (
        listen("127.0.0.1", 0) as door,
        socket.create_connection(door.getsockname()) as _,
        door.accept()[0] as accepted,
    ):
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
