"""The figures of the house may get better, never worse; and they count what they say.

Whoever gets one lower writes the lower number here. An application brings files and lines of its
own, which are not counted; what the house around them needs more is written here by its change.
"""

from textwrap import dedent

from tests.architecture.figures import shape, submitting, webhook
from tests.architecture.sources import SOURCE, python_files

FILES = 239
FRAMES_OF_A_SUBMIT = 8
MODULES_OF_A_SUBMIT = 10
FRAMES_OF_A_WEBHOOK = 13
SMALL_WITH_ONE_IMPORTER = 1
CODE_LINES = 35_349


def test_there_are_not_more_files() -> None:
    assert len(shape.files(applications=False)) <= FILES


def test_there_are_not_more_small_modules_with_one_importer() -> None:
    small = shape.small_with_one_importer()
    assert len(small) <= SMALL_WITH_ONE_IMPORTER, small


def test_reasons_are_given_for_modules_that_need_one() -> None:
    assert set(shape.REASONS) <= set(shape.small_with_one_importer())
    assert all(len(reason.split()) > 3 for reason in shape.REASONS.values())


def test_registries_are_modules() -> None:
    assert set(shape.REGISTRIES) <= {shape.module_name(path) for path in python_files(SOURCE)}


def test_there_is_not_more_code() -> None:
    python, lua = shape.python_lines(applications=False), shape.lua_lines(applications=False)
    assert python + lua <= CODE_LINES


def test_only_code_is_counted() -> None:
    text = '''
        """What it is."""

        # why
        x = 1  # a comment beside code
        """About x."""


        def f() -> str:
            """In
            two lines."""
            return """a text
            of two lines"""
    '''
    assert shape.code_lines(dedent(text)) == 4


def test_a_submit_is_followed_from_its_call_to_the_socket() -> None:
    way = submitting.measured()
    assert way.frames[0].endswith("AppHandler.submit")
    assert "src/towpath/engine/" in way.frames[-1]
    assert {frame.partition(":")[0] for frame in way.frames} <= way.modules
    assert len(way.frames) <= FRAMES_OF_A_SUBMIT, way.frames
    assert len(way.modules) <= MODULES_OF_A_SUBMIT, way.modules


def test_a_webhook_is_followed_from_its_request_to_its_row() -> None:
    frames = webhook.measured()
    assert frames[0].endswith("Door.__call__")
    assert "src/towpath/ledger/" in frames[-1]
    assert len(frames) <= FRAMES_OF_A_WEBHOOK, frames
