"""Webhooks of forges: who sent it, what it asks for, saved; the work comes later."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute

from towpath.apps.reviews.hooks import github as github_hooks
from towpath.apps.reviews.hooks import gitlab as gitlab_hooks
from towpath.apps.reviews.hooks.hook import Hook, Ignored
from towpath.apps.reviews.model import Forge
from towpath.apps.reviews.options import ReviewsOptions
from towpath.apps.reviews.service import Reviews
from towpath.server.routes.reviews import TakenOut
from towpath.web.bodies import Deliveries
from towpath.web.fields import Answer, example
from towpath.web.problems import Refused, documented


class _Straight(APIRoute):
    """Described as the others are, and called with the request as it is.

    There is nothing to fill in or to check before the signature is, and deliveries come in bursts:
    without FastAPI's way through its dependencies one costs a quarter less.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        async def straight(request: Request) -> Response:
            answer: Answer | None = await self.endpoint(request)
            if answer is None:
                return Response(status_code=400)  # the client left: nobody reads it
            return Response(answer.model_dump_json(), 202, media_type="application/json")

        return straight


router = APIRouter(prefix="/api/v1/webhooks", tags=["reviews"], route_class=_Straight)
Read = Callable[..., Hook | Ignored]


class Inbox(msgspec.Struct, frozen=True):
    """Where deliveries arrive."""

    reviews: Reviews
    options: ReviewsOptions
    deliveries: Deliveries


class IgnoredOut(Answer):
    """A delivery that asks for no review."""

    model_config = example(ignored="pull_request closed")

    ignored: str
    """What it was."""


def _described(headers: dict[str, str]) -> dict[str, Any]:
    """The body and the headers of a delivery, which are read only once the signature is good."""
    content = {"schema": {"$ref": "#/components/schemas/Delivery"}}
    return {
        "requestBody": {"required": True, "content": {"application/json": content}},
        "parameters": [
            {"name": name, "in": "header", "description": about, "schema": {"type": "string"}}
            for name, about in headers.items()
        ],
    }


@router.post(
    "/github",
    status_code=202,
    response_model=TakenOut | IgnoredOut,
    responses=documented(404),
    openapi_extra=_described(
        {
            "X-GitHub-Event": "`pull_request` or `push`; others are ignored.",
            "X-GitHub-Delivery": "The same one again is the same review.",
            "X-Hub-Signature-256": "Of the raw body, with one of `reviews.github_secrets`.",
        }
    ),
)
async def github(request: Request) -> TakenOut | IgnoredOut | None:
    """What GitHub tells: a pull request or a push is saved, and reviewed later.

    Needs no key but a signature: 401 without a good one. A delivery that comes twice is one
    review. 404 while the server has no secret for it.
    """
    return await _take(request, Forge.GITHUB, github_hooks.read)


@router.post(
    "/gitlab",
    status_code=202,
    response_model=TakenOut | IgnoredOut,
    responses=documented(404),
    openapi_extra=_described(
        {
            "X-Gitlab-Event": "`Merge Request Hook` or `Push Hook`; others are ignored.",
            "Idempotency-Key": "The same one again is the same review.",
            "X-Gitlab-Token": "One of `reviews.gitlab_secrets`; or signed, as below.",
            "webhook-signature": "Of the raw body, with a signing token (`whsec_…`).",
        }
    ),
)
async def gitlab(request: Request) -> TakenOut | IgnoredOut | None:
    """The same for GitLab: merge requests and pushes, with a signature or a secret token."""
    return await _take(request, Forge.GITLAB, gitlab_hooks.read)


async def _take(request: Request, forge: Forge, read: Read) -> TakenOut | IgnoredOut | None:
    inbox: Inbox = request.app.state.inbox
    secrets = inbox.options.secrets_of(forge)
    if not secrets:
        raise Refused(
            404,
            "webhook_not_configured",
            f"this server takes no webhooks of {forge}",
            remedy=f"Set TOWPATH_REVIEWS__{forge.upper()}_SECRETS to the webhook's secret.",
        )
    async with inbox.deliveries.read(request.scope, request.receive) as body:
        if body is None:
            return None
        found = read(request.headers, body, secrets=secrets)
    if isinstance(found, Ignored):
        return IgnoredOut(ignored=found.reason)
    return TakenOut.of(await inbox.reviews.take(found))
