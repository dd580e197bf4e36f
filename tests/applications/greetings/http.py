"""Greetings over HTTP: a route with a scope, an open one, and webhooks of GitHub and of others."""

import hmac
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Depends

from tests.applications.greetings.service import QUEUE, Greetings
from towpath.calls.errors import SignatureRefused
from towpath.ledger.keys.key import KeyInfo, Scope
from towpath.web.application_routes import ApplicationRoutes, WebhookListener
from towpath.web.audit import audited
from towpath.web.auth import scoped
from towpath.web.dependencies import service
from towpath.web.fields import Answer
from towpath.web.problems import documented

router = APIRouter(prefix="/api/v1/greetings", tags=["greetings"])
TheGreetings = Annotated[Greetings, Depends(service("greetings"))]
CanGreet = Annotated[KeyInfo, Depends(scoped(Scope.SUBMIT, queue=QUEUE))]


class GreetedOut(Answer):
    """Somebody will be greeted."""

    job: str


@router.post("/{name}", response_model=GreetedOut, responses=documented(404))
@audited()
async def greet(name: str, greetings: TheGreetings, _: CanGreet) -> GreetedOut:
    """Greet somebody."""
    return GreetedOut(job=await greetings.greet(name))


@router.get("", response_model=GreetedOut)
async def word(greetings: TheGreetings) -> GreetedOut:
    """What is said. Needs no key."""
    return GreetedOut(job=greetings.host.options.word)


def read(headers: Mapping[str, str], body: bytes, *, secrets: Sequence[str]) -> str:
    """Who is to be greeted."""
    signed = [f"sha256={hmac.digest(secret.encode(), body, 'sha256').hex()}" for secret in secrets]
    if headers.get("x-hub-signature-256") not in signed:
        raise SignatureRefused("x-hub-signature-256 fits no secret")
    found: dict[str, Any] = msgspec.json.decode(body)
    return found["sender"]["login"]


async def take(greetings: Greetings, name: str) -> GreetedOut:
    return GreetedOut(job=await greetings.greet(name))


def listener(path: str) -> WebhookListener:
    return WebhookListener(
        path=path,
        secrets="github_secrets",
        read=read,
        take=take,
        answer=GreetedOut,
        signature="X-Hub-Signature-256",
        signed="Of this very body.",
        headers={"X-Hub-Signature-256": "Of this very body."},
        about="Greets the sender.",
    )


ROUTES = ApplicationRoutes(
    routers=(router,),
    tags={"greetings": "Greet people."},
    open=("/api/v1/greetings",),
    listeners=(listener("github"), listener("greetings/hello")),
)
