"""Rules for templates and scripts, so that no text becomes markup, even in later fields."""

import re
from pathlib import Path

import pytest

from tests.architecture.sources import ROOT

PACKAGE = ROOT / "src" / "towpath"
TEMPLATES = sorted(PACKAGE.rglob("templates/**/*.html"))
SCRIPTS = [path for path in sorted(PACKAGE.rglob("static/**/*.js")) if "vendor" not in path.parts]
TRUSTED = {"login.html": "{{ style|safe }}"}
"""Our own stylesheet, under a nonce."""
WHOLE_ADDRESSES = {"{{ path }}", "{{ static(", "{{ url }}", "{{ origin"}
"""What an address may begin with beside `/`: paths of ours, never what somebody wrote."""
RULES = {
    "is marked as safe": r"\|\s*safe\b|\bMarkup\b|\bautoescape\b|\|\s*tojson\b",
    "is an attribute without quotes": r"\s[\w:-]+\s*=\s*\{\{",
    "is inside of a script": r"<script\b[^>]*>[^<]*\{\{",
    "is inside of a style": r"<style\b[^>]*>[^<]*\{\{|\bstyle\s*=\s*[\"'][^\"']*\{\{",
    "is a script in an attribute": r"<[^>]*\son[a-z]+\s*=",
    "is in single quotes": r"=\s*'[^'{%]*\{\{",
}
ISOLATED = (
    r"<bdi>.*?</bdi>",
    r"\{% block title %\}.*?\{% endblock %\}",
    r"\{% set .*?%\}",
    r"\{\{ action\(.*?\}\}",
    r"[\w-]+=\"(?:\{\{.*?\}\}|\{%.*?%\}|[^\"])*\"",
)
ADDRESS = re.compile(r"\b(?:href|src|action|formaction|hx-get)\s*=\s*\"(\{\{[^\"]*)\"")
UNSAFE_SCRIPT = re.compile(
    r"\b(?:innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval|setHTMLUnsafe|"
    r"createContextualFragment|DOMParser|srcdoc|new Function)\b"
)


def wrong(name: str, text: str) -> list[str]:
    """Code that could let a text become markup."""
    text = text.replace(TRUSTED.get(name, "\0"), "")
    found = [rule for rule, pattern in RULES.items() if re.search(pattern, text)]
    found += [f"is not isolated: {field}" for field in unisolated(text)]
    begins = [
        address
        for address in ADDRESS.findall(text)
        if not address.startswith(tuple(WHOLE_ADDRESSES))
    ]
    return found + [f"an address that is {address}" for address in begins]


def unisolated(text: str) -> list[str]:
    """Texts of others outside of `<bdi>`: a text from right to left would turn its neighbours
    around. Titles, attributes and confirmations of buttons have only that text.
    """
    for pattern in ISOLATED:
        text = re.sub(pattern, "", text, flags=re.DOTALL)
    return re.findall(r"\{\{[^}]*\|\s*(?:short|visible|as_text)\b[^}]*\}\}", text)


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: f"{path.parts[-4]}-{path.name}")
def test_a_template_leaves_no_text_unescaped(path: Path) -> None:
    assert wrong(path.name, path.read_text()) == []


@pytest.mark.parametrize(
    ("planted", "rule"),
    [
        ("<b>{{ job.id|safe }}</b>", "is marked as safe"),
        ("{% autoescape false %}{{ job.id }}{% endautoescape %}", "is marked as safe"),
        ("<b title={{ job.id }}>", "is an attribute without quotes"),
        ("<script>let id = '{{ job.id }}'</script>", "is inside of a script"),
        ('<b style="color: {{ job.id }}">', "is inside of a style"),
        ('<b onclick="go()">{{ job.id }}</b>', "is a script in an attribute"),
        ("<b title='{{ job.id }}'>", "is in single quotes"),
        ('<a href="{{ issue.url }}">', "an address that is {{ issue.url }}"),
        ("<p>{{ job.id|short(9) }}</p>", "is not isolated: {{ job.id|short(9) }}"),
    ],
)
def test_a_template_with_unescaped_text_is_found(planted: str, rule: str) -> None:
    assert rule in wrong("planted.html", planted)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_no_script_makes_markup_from_text(path: Path) -> None:
    assert UNSAFE_SCRIPT.findall(path.read_text()) == []
