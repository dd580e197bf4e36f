"""Options of a queue as texts."""

import pytest

from towpath import Exponential, Fixed, LanePolicy, Listed, Never, QueueOptions, hours, seconds
from towpath.cli.queues import changed, written
from towpath.errors import InvalidOption


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("never", Never()),
        ("fixed:30s", Fixed(seconds(30))),
        ("listed:1s,5s", Listed((seconds(1), seconds(5)))),
        ("exponential", Exponential()),
        ("exponential:2s", Exponential(first=seconds(2))),
        ("exponential:2s:1h", Exponential(first=seconds(2), longest=hours(1))),
    ],
)
def test_a_retry_policy_is_read(text: str, policy: object) -> None:
    assert changed(QueueOptions(), {"retry": text}).retry == policy


def test_what_is_written_is_read_the_same() -> None:
    options = QueueOptions(
        keep=hours(2), lanes=LanePolicy.SKIP, retry=Listed((seconds(1),)), max_length=7
    )
    texts = {name: str(value) for name, value in written(options).items()}
    assert changed(QueueOptions(), texts) == options


@pytest.mark.parametrize(
    "texts",
    [
        {"retry": "sometimes"},
        {"retry": "fixed"},
        {"retry": "never:1s"},
        {"lanes": "jump"},
        {"keep": "10"},
        {"max_attempts": "many"},
        {"max_attempts": "0"},
        {"max_attempts": "9" * 40},
        {"colour": "red"},
    ],
)
def test_what_can_not_be_right_is_refused(texts: dict[str, str]) -> None:
    with pytest.raises(InvalidOption):
        changed(QueueOptions(), texts)
