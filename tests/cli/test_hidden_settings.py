"""I21: secrets in the tree of settings are shown nowhere, whoever declares them."""

import os
import traceback
from pathlib import Path

import pytest
from rich.pretty import pretty_repr

from tests.cli.command import Command
from towpath.cli.config import groups
from towpath.errors import TowpathError
from towpath.settings import Core, leaves, load
from towpath.settings.sources import Leaf

CANARY = "canary-77b0"
SECRET = {leaf.name: leaf for leaf in leaves(groups(Core())) if leaf.field.info.secret}
FITTING = {
    "url": f"redis://anna:{CANARY}@localhost",
    "database": f"postgresql://anna:{CANARY}@localhost/x",
    "outbox.kafka_options": f"sasl.password={CANARY}",
    "reviews.reviewer_variables": CANARY.upper().replace("-", "_"),
}


@pytest.fixture(autouse=True)
def no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty directory, and no variables."""
    monkeypatch.chdir(tmp_path)
    for name in os.environ:
        if name.startswith(("TOWPATH_", "REDIS_", "DATABASE_")):
            monkeypatch.delenv(name)


def test_the_core_and_every_application_declare_secrets() -> None:
    assert {"url", "password", "calls.secrets", "messages.worker_url"} <= set(SECRET)
    assert len(SECRET) >= 14


@pytest.mark.parametrize("leaf", SECRET.values(), ids=list(SECRET))
def test_a_secret_is_not_shown_by_settings_or_options(
    leaf: Leaf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the loaded value, nor the options made from it, nor an error of the group shows
    it.
    """
    monkeypatch.setenv("CANARY_77B0", CANARY)
    monkeypatch.setenv(leaf.variables[0], FITTING.get(leaf.name, CANARY))
    settings = load(registry=groups)
    assert CANARY in str(settings.value(leaf.name))
    assert CANARY not in f"{settings!r} {settings} {pretty_repr(settings)}"
    for kind in {kind() for kind in groups(settings).values()}:
        try:
            options = settings.of(kind)
            told = f"{options!r} {options} {pretty_repr(options)}"
        except TowpathError as error:
            told = "".join(traceback.format_exception(error))
        assert CANARY not in told


@pytest.mark.parametrize("leaf", SECRET.values(), ids=list(SECRET))
def test_a_secret_is_not_repeated_by_its_error(leaf: Leaf) -> None:
    Path("towpath.toml").write_text(f'{leaf.name} = [["{CANARY}"]]\n')
    with pytest.raises(TowpathError) as refusal:
        load(registry=groups)
    assert leaf.name in str(refusal.value)
    assert CANARY not in "".join(traceback.format_exception(refusal.value))


def test_no_secret_is_shown_by_the_command(towpath: Command) -> None:
    env = {leaf.variables[0]: FITTING.get(leaf.name, CANARY) for leaf in SECRET.values()}
    for words in (("config",), ("config", "--json")):
        ran = towpath(*words, **env, CANARY_77B0=CANARY)
        assert ran.code == 0
        assert all(name in ran.out for name in SECRET)
        assert ran.out.count("(hidden)") >= len(SECRET) - 1, "the address is shown without a word"
        assert CANARY not in ran.out + ran.err
    refused = towpath("serve", "--port", "0", **env, CANARY_77B0=CANARY)
    assert refused.code != 0
    assert CANARY not in refused.out + refused.err
