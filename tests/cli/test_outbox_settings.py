"""The settings of the outbox: the sinks, their options as people write them, and no secret
shown.
"""

from pathlib import Path

import pytest

from tests.cli.command import Command
from towpath.cli.config import groups
from towpath.errors import InvalidOption
from towpath.settings import Settings
from towpath.settings import load as loaded
from towpath.settings.sources import Origin

pytestmark = pytest.mark.usefixtures("no_settings")

CANARY = "canary-d94a"
SINKS = "TOWPATH_OUTBOX__SINKS"
OPTIONS = "TOWPATH_OUTBOX__KAFKA_OPTIONS"


def load() -> Settings:
    """All settings, with the groups that the command line knows."""
    return loaded(registry=groups)


def options() -> dict[str, str]:
    return load().value("outbox.kafka_options")


def test_a_stream_in_redis_is_the_default_sink() -> None:
    settings = load()
    assert settings.value("outbox.sinks") == ("redis",)
    assert settings.value("outbox.redis_stream") == "events"


@pytest.mark.parametrize(
    ("text", "sinks"),
    [("none", ()), ("kafka", ("kafka",)), ("redis, webhook", ("redis", "webhook"))],
)
def test_sinks_are_separated_by_commas_and_none_means_no_sink(
    text: str, sinks: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(SINKS, text)
    assert load().value("outbox.sinks") == sinks
    monkeypatch.delenv(SINKS)
    Path("towpath.toml").write_text(f"[outbox]\nsinks = {list(sinks)}\n")
    assert load().value("outbox.sinks") == sinks


@pytest.mark.parametrize("text", ["kafk", "redis,none", "redis,redis"])
def test_unknown_sinks_are_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SINKS, text)
    with pytest.raises(InvalidOption, match=r"outbox\.sinks.*redis, kafka, webhook"):
        load()


@pytest.mark.parametrize(
    "text",
    [
        "sasl.username=a\nsasl.password=b=c,d\n",
        '{"sasl.username": "a", "sasl.password": "b=c,d"}',
    ],
)
def test_options_of_kafka_are_lines_or_json(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A comma separates nothing: it may be in a password."""
    monkeypatch.setenv(OPTIONS, text)
    assert options() == {"sasl.username": "a", "sasl.password": "b=c,d"}


def test_options_of_kafka_are_a_table_in_the_file_with_or_without_quotes() -> None:
    Path("towpath.toml").write_text(
        '[outbox.kafka_options]\n"sasl.username" = "a"\n'
        'ssl.ca.location = "/ca.pem"\nenable.metrics.push = false\nsocket.timeout.ms = 5000\n'
    )
    assert options() == {
        "sasl.username": "a",
        "ssl.ca.location": "/ca.pem",
        "enable.metrics.push": "false",
        "socket.timeout.ms": "5000",
    }


@pytest.mark.parametrize("text", [CANARY, f"a=b\n{CANARY}", f"={CANARY}", f'{{"a": {CANARY}'])
def test_invalid_options_of_kafka_are_refused_and_not_repeated(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(OPTIONS, text)
    with pytest.raises(InvalidOption, match="kafka_options") as refusal:
        load()
    assert CANARY not in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("outbox.kafka_options", f"sasl.password={CANARY}"),
        ("outbox.webhook_url", f"https://example.com/{CANARY}"),
        ("calls.secrets", CANARY),
    ],
)
def test_a_secret_may_come_from_a_file_and_is_never_shown(
    name: str, text: str, towpath: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I21: neither by `towpath config`, nor in an error."""
    variable = f"TOWPATH_{name.upper().replace('.', '__')}"
    Path("secret").write_text(f"{text}\n")
    monkeypatch.setenv(f"{variable}_FILE", "secret")
    assert load().origin(name) == Origin("variable", f"{variable}_FILE")
    towpath.directory.joinpath("secret").write_text(f"{text}\n")
    for words in (("config",), ("config", "--json")):
        ran = towpath(*words, **{f"{variable}_FILE": "secret"})
        assert ran.code == 0
        assert "(hidden)" in next(line for line in ran.out.splitlines() if name in line)
        assert CANARY not in ran.out + ran.err
    both = towpath("config", **{f"{variable}_FILE": "secret", variable: text})
    assert both.code == 2
    assert CANARY not in both.out + both.err
