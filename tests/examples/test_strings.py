"""The page of strings has every kind of text that a user may read: a new one appears there."""

from pathlib import Path
from typing import Any

import pytest

from docs.reference.http import description
from docs.reference.strings import (
    call_strings,
    error_strings,
    help_strings,
    http_strings,
    metric_strings,
    other_strings,
    page_strings,
    strings_page,
)
from towpath.apps.application import applications
from towpath.cli.config import groups
from towpath.engine.fields import declared
from towpath.engine.model import JobOptions
from towpath.engine.options import QueueOptions
from towpath.options import sentences_of
from towpath.settings import Core, leaves
from towpath.telemetry import events, measures

MODULE = '''"""A module."""


class ShopClosed(ShopError):
    """The shop is closed."""

    code = "shop_closed"
    remedy = "Come back tomorrow."
    _what = "closed since noon"

    def __init__(self, shop: str, *, early: bool) -> None:
        when = "sooner than usual" if early else "as always"
        super().__init__(f"shop {shop} closed {when}")


@verb(app, "open")
async def open_(name: Annotated[str, typer.Argument(help="Name of the shop.")]) -> None:
    """Open a shop."""
    raise InvalidOption("shop", name, rule="must be a shop")


async def close(name: str) -> None:
    """Close a shop."""


verb(app, "close")(close)


def finding(name: str) -> str:
    """Not shown: a docstring."""
    text = f"no shop called {name}"
    return text
'''
TEMPLATE = """
{% extends "frame.html" %}
{% block content %}
<h1>All shops</h1><p>{% if open %}It is open{% else %}It is closed{% endif %}.</p>
<input placeholder="Name of a shop"><span aria-label="Shops by town"></span>
{{ action("Close", "POST", path, "Customers of " ~ name ~ " have to leave.", done="Closed.") }}
{% endblock %}
"""
SCRIPT = """
"use strict";
tell(`Shop ${name} was closed.`);
say("The shop can't be reached.");
document.querySelector("#shops .open");
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "templates").mkdir()
    (tmp_path / "static").mkdir()
    (tmp_path / "shop.py").write_text(MODULE)
    (tmp_path / "templates" / "shops.html").write_text(TEMPLATE)
    (tmp_path / "static" / "shops.js").write_text(SCRIPT)
    return tmp_path


def test_an_error_is_shown_with_its_remedy_and_all_that_its_message_is_made_of(
    source: Path,
) -> None:
    assert [told.text for told in error_strings(source) if told.of == "ShopClosed"] == [
        "The shop is closed.",
        "Come back tomorrow.",
        "closed since noon",
        "sooner than usual / as always",
        "shop {…} closed {…}",
    ]


def test_rules_help_and_other_texts_are_shown(source: Path) -> None:
    assert "must be a shop" in [told.text for told in call_strings(source)]
    assert [told.text for told in help_strings(source)] == [
        "Open a shop.",
        "Close a shop.",
        "Name of the shop.",
    ]
    others = [told.text for told in other_strings(source)]
    assert "no shop called {…}" in others
    assert not [text for text in others if "docstring" in text]


def test_a_page_is_shown_with_its_text_its_labels_and_its_questions(source: Path) -> None:
    assert [told.text for told in page_strings(source)] == [
        "All shops",
        "It is open / It is closed.",
        "Name of a shop",
        "Shops by town",
        "Close",
        "Customers of {…} have to leave.",
        "Closed.",
        "Shop {…} was closed.",
        "The shop can't be reached.",
    ]


def test_the_http_api_is_shown_with_parameters_answers_and_fields() -> None:
    api: dict[str, Any] = {
        "tags": [{"name": "shops", "description": "All the shops."}],
        "paths": {
            "/shops": {
                "get": {
                    "description": "List shops.",
                    "parameters": [{"name": "town", "in": "query", "description": "Only there."}],
                    "responses": {"404": {"description": "There is no such town."}},
                }
            }
        },
        "components": {
            "schemas": {
                "Shop": {
                    "description": "One shop.",
                    "properties": {"open": {"description": "Whether it is open."}},
                }
            }
        },
    }
    assert [told.text for told in http_strings(api)] == [
        "All the shops.",
        "List shops.",
        "Only there.",
        "There is no such town.",
        "One shop.",
        "Whether it is open.",
    ]


def test_each_kind_is_on_the_page(source: Path) -> None:
    """What is read off the sources comes from *source* here; the rest is what there is."""
    api = description()
    page = strings_page(source, api)
    own = [each for app in applications() for each in app.metrics]
    wanted = [
        *(each.about for each in leaves(groups(Core()))),
        *sentences_of(QueueOptions).values(),
        *(each.about for each in declared(JobOptions).values()),
        *(each.sentence for each in events.CATALOGUE),
        *events.FIELDS.values(),
        *(each.sentence for each in (*measures.CATALOGUE, *own)),
        *(told.text for told in (*metric_strings(), *http_strings(api))),
        *(told.text for told in (*error_strings(source), *call_strings(source))),
        *(told.text for told in (*help_strings(source), *page_strings(source))),
        *(told.text for told in other_strings(source)),
    ]
    shown = page.replace("\\", "")
    missing = [text for text in wanted if " ".join(text.split()).replace("\\", "") not in shown]
    assert len(wanted) > 500
    assert missing == []
