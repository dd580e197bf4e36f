"""All forges: what reviews and the server know of a forge comes from its module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from towpath.apps.reviews.adapters import POSTERS
from towpath.apps.reviews.http import ROUTES
from towpath.apps.reviews.model import Forge
from towpath.apps.reviews.options import ReviewsOptions
from towpath.forges import gitlab
from towpath.forges.facts import Delivery, ForgeEvent
from towpath.forges.registry import FORGES
from towpath.forges.spec import ForgeSpec
from towpath.options import fields_of
from towpath.web.application_routes import SHARED, forge_listener


def test_reviews_listen_to_the_webhooks_of_every_forge() -> None:
    names = [forge.name for forge in FORGES]
    assert [listener.path for listener in ROUTES.listeners] == names
    assert list(SHARED) == names
    assert [*Forge] == [*names, "api"]


@pytest.mark.parametrize("forge", FORGES, ids=lambda forge: forge.name)
def test_reviews_have_the_secrets_of_every_forge(forge: ForgeSpec) -> None:
    assert f"{forge.name}_secrets" in {field.name for field in fields_of(ReviewsOptions)}


@pytest.mark.parametrize("forge", FORGES, ids=lambda forge: forge.name)
def test_reviews_have_a_token_and_a_host_for_exactly_the_forges_with_a_poster(
    forge: ForgeSpec,
) -> None:
    settings = {field.name for field in fields_of(ReviewsOptions)}
    of_poster = {f"{forge.name}_{each}" for each in ("token", "host")}
    assert settings & of_poster == (of_poster if forge.name in POSTERS else set())
    assert forge.name not in POSTERS or ReviewsOptions().host_of(forge.name) == forge.host


def test_a_listener_is_described_by_its_forge_alone() -> None:
    def read(headers: Mapping[str, str], body: bytes, *, secrets: Sequence[str]) -> Delivery:
        return gitlab.read(headers, body, secrets=secrets)

    forge = ForgeSpec(
        name="treehouse",
        title="Treehouse",
        host="https://treehouse.example",
        api=lambda host: f"{host}/api",
        accept="application/json",
        read=read,
        events={"pull": ForgeEvent.PULL, "push": ForgeEvent.PUSH, "star": ForgeEvent.LABEL},
        event_header="X-Tree-Event",
        delivery_header="X-Tree-Id",
        signature_headers={"X-Tree-Signature": "Made with one of `{secrets}`."},
        signature="The signature.",
        pull="branch",
        other_action="branch {}",
        ready="at once",
    )
    listener = forge_listener(
        forge,
        application="reviews",
        events=(ForgeEvent.PUSH, ForgeEvent.PULL),
        repeated="is the same review",
        read=read,
        take=ROUTES.listeners[0].take,
        answer=dict[str, str],
        about="",
    )
    assert (listener.path, listener.secrets) == ("treehouse", "treehouse_secrets")
    assert listener.headers == {
        "X-Tree-Event": "`push` or `pull`; others are ignored.",
        "X-Tree-Id": "The delivery's id; a repeated id is the same review.",
        "X-Tree-Signature": "Made with one of `reviews.treehouse_secrets`.",
    }
