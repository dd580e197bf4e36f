"""Planted secrets never appear in a log line, however they are logged."""

import re
from functools import cache

import pytest

from tests.telemetry.streams import through_a_pipe
from towpath.telemetry.logs import scrub

CANARY = "cAnArY-9f2"

WAYS = {
    "a URL in a reason": "leak('cannot reach redis://anna:{0}@db:6379/0')",
    "a URL whose password has an at sign": "leak('redis://:{0}@{0}@db/0 is away')",
    "a URL as the place of a server": (
        "log.emit(events.SERVER_BACK, server='redis://{0}@db', away=1)"
    ),
    "a URL as a job's id": (
        "log.emit(events.JOB_RELEASED, reason='', **(JOB | dict(job='s3://k:{0}@bucket')))"
    ),
    "credentials without a scheme": "leak('connect to anna:{0}@db:6379 failed')",
    "a query": "leak('redis+sentinel://a,b/main?sentinel_password={0}&x=1')",
    "a setting in words": "leak('password: {0}')",
    "the text of an exception as a reason": "leak(OSError('no: redis://:{0}@db'))",
    "bytes as a reason": "leak(b'{0}')",
    "a dictionary as a reason": "leak(dict(text='{0}'))",
    "an object as a reason": "leak(type('Payload', (), dict(__repr__=lambda self: '{0}'))())",
    "a line of another logger": "logging.getLogger('redis').error('AUTH to redis://u:{0}@db')",
    "an argument of another logger": "logging.getLogger('redis').error('%s', 'redis://u:{0}@db')",
    "an extra of another logger": "logging.getLogger('app').error('x', extra=dict(p='{0}'))",
    "local variables of a traceback": """
payload = ''.join(reversed('{1}'))
try:
    raise ValueError('it has ' + str(len(payload)))
except ValueError as error:
    log.emit(events.SERVER_BACK, error, server='s', away=1)
    logging.getLogger('app').exception('failed')
""",
    "the message in a traceback": """
try:
    raise OSError('redis://u:' + ''.join(reversed('{1}')) + '@db')
except OSError as error:
    log.emit(events.SERVER_BACK, error, server='s', away=1)
""",
    "a password beyond the cut": "leak('x' * 990 + ' redis://u:{0}@db')",
}

LEAK = """
import sys
def leak(reason): log.emit(events.JOB_FAILED, ran=1, error='E', delay=1, reason=reason, **JOB)
"""
SETUP = {
    "json": "logs.configure(form='json')",
    "plain": "logs.configure(form='plain')",
    "host": "logging.basicConfig(level='INFO')",
}
# The host program decides how its own loggers and tracebacks look.
CASES = [
    (form, way)
    for form in SETUP
    for way in WAYS
    if form != "host" or not re.search("logger|traceback", way)
]


@cache
def written(form: str) -> dict[str, str]:
    """The output of each way to log: one program tries them all, with a heading before each."""
    steps = [
        f"print({'=== ' + way!r}, file=sys.stderr)\n{WAYS[way]}" for of, way in CASES if of == form
    ]
    program = "\n".join(steps).replace("{0}", CANARY).replace("{1}", CANARY[::-1])
    parts = through_a_pipe(f"{SETUP[form]}\n{LEAK}\n{program}").split("=== ")[1:]
    return {way: text for way, _, text in (part.partition("\n") for part in parts)}


@pytest.mark.parametrize(("form", "way"), CASES)
def test_a_secret_is_not_in_the_output(form: str, way: str) -> None:
    text = written(form)[way]
    assert text, "nothing was written: this proves nothing"
    assert CANARY not in text


@pytest.mark.parametrize(
    "text",
    [
        "mail to anna@example.org failed",
        "see https://example.org/a:b for more",
        "12:30:05 the queue was full",
        "handler tests.app:review was not found",
        "redis://localhost:6379/0",
    ],
)
def test_text_that_is_no_secret_is_kept(text: str) -> None:
    assert scrub(text) == text


def test_a_job_id_that_looks_like_credentials_is_kept_so_that_it_can_be_searched_for() -> None:
    assert scrub("user:42@eu", name=True) == "user:42@eu"
