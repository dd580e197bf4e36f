"""Options of a queue as texts."""

import pytest

from towpath import Exponential, Fixed, LanePolicy, Listed, Never, QueueOptions, hours, seconds
from towpath.cli.queues import changed, written
from towpath.engine.retry import RetryPolicy
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
        ("exponential:2s:1h:3", Exponential(first=seconds(2), longest=hours(1), factor=3)),
        ("exponential:1s:1h:1.5:0", Exponential(longest=hours(1), factor=1.5, jitter=0)),
    ],
)
def test_a_retry_policy_is_parsed(text: str, policy: object) -> None:
    assert changed(QueueOptions(), {"retry": text}).retry == policy


@pytest.mark.parametrize(
    "retry",
    [
        Listed((seconds(1),)),
        Never(),
        Exponential(first=seconds(5), longest=hours(2)),
        Exponential(first=seconds(5), factor=3),
        Exponential(jitter=0.5),
    ],
    ids=repr,
)
def test_options_survive_writing_and_reading(retry: RetryPolicy) -> None:
    options = QueueOptions(keep=hours(2), lanes=LanePolicy.SKIP, retry=retry, max_length=7)
    texts = {name: str(value) for name, value in written(options).items()}
    assert changed(QueueOptions(), texts) == options


@pytest.mark.parametrize(
    "texts",
    [
        {"retry": "sometimes"},
        {"retry": "fixed"},
        {"retry": "exponential:1s:1h:twice"},
        {"retry": "exponential:1s:1h:2:7"},
        {"retry": "exponential:1s:1h:2:0.2:1"},
        {"retry": "never:1s"},
        {"lanes": "jump"},
        {"keep": "10"},
        {"max_attempts": "many"},
        {"max_attempts": "0"},
        {"max_attempts": "9" * 40},
        {"colour": "red"},
    ],
)
def test_invalid_options_are_refused(texts: dict[str, str]) -> None:
    with pytest.raises(InvalidOption):
        changed(QueueOptions(), texts)
