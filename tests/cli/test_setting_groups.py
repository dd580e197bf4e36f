"""A group of settings is a class and a name: people can set the fields of the class."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import pytest
from msgspec import Meta

from towpath import Duration, seconds
from towpath.errors import InvalidOption
from towpath.options import Allowed, FieldInfo, Options, Secret, Signing
from towpath.settings import Core, Groups, Settings, load
from towpath.settings.sources import Origin, leaves_of

pytestmark = pytest.mark.usefixtures("no_settings")


class LinksOptions(Options, frozen=True, kw_only=True):
    """How links are checked."""

    within: Duration = seconds(10)
    """How long one check may take."""
    attempts: Annotated[int, Meta(ge=1, le=100)] = 3
    """How often a link is tried."""
    follow: bool = True
    """Whether redirects are followed."""
    hosts: tuple[str, ...] = ()
    """Which hosts are checked."""
    token: Annotated[Secret | None, FieldInfo(also=("links_token",))] = None
    """Token for the checker."""
    secrets: Signing = ()
    allow: Allowed = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.token == "needs signing" and not self.secrets:  # noqa: S105 -- of nobody
            raise InvalidOption("secrets", "none", rule="a token needs one")


def links(_: Core) -> Groups:
    return {"links": lambda: LinksOptions}


def loaded(**flags: Any) -> Settings:
    return load(flags, registry=links)


class PageOptions(LinksOptions, frozen=True, kw_only=True):
    """A class that is made from another one has its options too."""

    depth: int = 2
    """How deep pages are followed."""


def test_a_class_may_be_made_from_another_one() -> None:
    found = {leaf.field.name: leaf for leaf in leaves_of(PageOptions, "pages")}
    assert found["depth"].about == "How deep pages are followed."
    assert found["within"].about == "How long one check may take."
    assert found["within"].owner is LinksOptions


def test_the_defaults_of_a_group_are_those_of_its_class() -> None:
    assert loaded().of(LinksOptions) == LinksOptions()


def test_a_group_is_set_by_texts_that_people_write() -> None:
    Path("towpath.toml").write_text(
        '[links]\nwithin = "2s"\nfollow = "off"\nhosts = "a, b"\ntoken = "t"\n'
        '[calls]\nallow = ["10.0.0.0/8"]\nsecrets = "whsec_x"\n'
    )
    assert loaded().of(LinksOptions) == LinksOptions(
        within=seconds(2),
        follow=False,
        hosts=("a", "b"),
        token="t",  # noqa: S106 -- of nobody
        secrets=("whsec_x",),
        allow=("10.0.0.0/8",),
    )


@pytest.mark.parametrize("variable", ["TOWPATH_LINKS__TOKEN", "TOWPATH_LINKS_TOKEN"])
def test_an_option_can_have_other_names_and_a_secret_its_file(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, "t")
    assert loaded().value("links.token") == "t"
    monkeypatch.delenv(variable)
    Path("secret").write_text("from a file\n")
    monkeypatch.setenv(f"{variable}_FILE", "secret")
    settings = loaded()
    assert settings.value("links.token") == "from a file"
    assert settings.origin("links.token") == Origin("variable", f"{variable}_FILE")


def test_an_older_name_is_read_in_the_file_too() -> None:
    Path("towpath.toml").write_text('links_token = "t"\n')
    assert loaded().of(LinksOptions).token == "t"  # noqa: S105 -- of nobody


@pytest.mark.parametrize(
    ("text", "option", "value", "named"),
    [
        ("[links]\nattempts = 0", "links.attempts", 0, "100"),
        ("[links]\nattempts = 'many'", "links.attempts", "many", "100"),
        ("[links]\nwithin = 3", "links.within", 3, ""),
        ("[links]\nfollow = 'maybe'", "links.follow", "maybe", ""),
        ("[links]\natempts = 1", "links.atempts", "…", "links.attempts"),
        ("[lynx]\nattempts = 1", "lynx.attempts", "…", "links.attempts"),
        ("[lynx]", "lynx", "…", ""),
        ("links = 3", "links", "…", "[links]"),
        ("[links]\nsecrets = ['x']", "links.secrets", "…", "calls.secrets"),
        ("[links]\ntoken = 'needs signing'", "calls.secrets", "none", "a token needs one"),
    ],
)
def test_a_refusal_names_the_setting(text: str, option: str, value: object, named: str) -> None:
    """The error names a limit, the setting that was meant, or the own rule, beside the setting."""
    Path("towpath.toml").write_text(text)
    with pytest.raises(InvalidOption) as refusal:
        loaded().of(LinksOptions)
    assert (refusal.value.option, refusal.value.value) == (option, value)
    assert named in refusal.value.rule


def test_options_created_in_python_have_the_same_bounds() -> None:
    with pytest.raises(InvalidOption) as refusal:
        LinksOptions(attempts=0)
    assert (refusal.value.option, refusal.value.value) == ("attempts", 0)
    wrong: Any = ["canary"]
    with pytest.raises(InvalidOption) as refusal:
        LinksOptions(token=wrong)
    assert refusal.value.option == "token"
    assert "canary" not in str(refusal.value)


def test_the_class_of_a_group_is_loaded_only_if_one_of_its_settings_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`towpath queues` loads no application whose settings are not used."""

    def absent() -> type[Options]:
        raise AssertionError("nobody said anything")

    asked: Callable[[Core], Groups] = lambda _: {"links": absent}  # noqa: E731 -- one line
    assert load(registry=asked).timeout == seconds(5)
    monkeypatch.setenv("TOWPATH_LINKS__WITHIN", "1s")
    with pytest.raises(AssertionError, match="nobody"):
        load(registry=asked)


def test_every_setting_is_listed_where_no_extra_is_installed() -> None:
    """The options of a part can be read without the libraries of the part."""
    code = """
import sys
for name in ("fastapi", "starlette", "sqlalchemy", "alembic", "httpx", "httpcore", "uvicorn"):
    sys.modules[name] = None
from towpath.cli.main import main
sys.argv = ["towpath", "config", "--json"]
main()
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert '"http.body"' in ran.stdout
