"""Log lines: for people in a terminal, JSON otherwise, always one line per event."""

import io
import json
import logging
import re
import select
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from tests.telemetry.streams import in_a_terminal, through_a_pipe
from towpath.errors import InvalidOption
from towpath.telemetry import events, logs
from towpath.telemetry.logs import CatalogueMismatch, JobLine, Log, current_job

COMPLETED = """
log.emit(events.JOB_COMPLETED, waited=0.0123, ran=timedelta(milliseconds=1500), **JOB)
"""
JOB = {"job": "01JB7Q", "queue": "q", "handler": "h", "attempt": 1}
CONFIGURED = "logs.configure()" + COMPLETED


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    """The stream of this process's log lines, as JSON, from level debug on."""
    stream = io.StringIO()
    logs.configure(form="json", level="debug", stream=stream)
    yield stream
    logs.reset()


def objects(text: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in text.splitlines()]


class TestTheOutputOfALog:
    def test_a_pipe_gets_one_json_object_per_line_with_the_fields_in_order(self) -> None:
        [line] = objects(through_a_pipe(CONFIGURED))
        at = datetime.fromisoformat(str(line.pop("time")))
        assert abs(at - datetime.now(UTC)) < timedelta(minutes=1)
        assert list(line.items()) == [
            ("level", "info"),
            ("event", "job.completed"),
            ("job", "01JB7Q"),
            ("queue", "reviews"),
            ("handler", "review"),
            ("attempt", 2),
            ("waited", 0.0123),
            ("ran", 1.5),
            ("worker", "build-3"),
        ]

    def test_a_terminal_gets_a_coloured_line_for_people(self) -> None:
        written = in_a_terminal(CONFIGURED)
        assert "\x1b[" in written
        assert "job.completed" in written
        assert "{" not in written
        assert len(written.splitlines()) == 1

    def test_a_terminal_gets_json_when_configured(self) -> None:
        assert len(objects(in_a_terminal("logs.configure(form='json')" + COMPLETED))) == 1

    def test_the_form_plain_has_no_colours_even_in_a_terminal(self) -> None:
        written = in_a_terminal("logs.configure(form='plain')" + COMPLETED)
        assert "\x1b" not in written
        assert "attempt=2 waited=0.0123 ran=1.5 worker=build-3" in written

    def test_human_lines_in_a_pipe_have_no_colours(self) -> None:
        written = through_a_pipe("logs.configure(form='human')" + COMPLETED)
        assert "\x1b" not in written
        assert "job=01JB7Q" in written

    def test_a_disabled_level_writes_nothing(self) -> None:
        assert through_a_pipe("logs.configure(level='warning')" + COMPLETED) == ""

    def test_configuring_twice_replaces_the_first_configuration(self) -> None:
        assert len(objects(through_a_pipe("logs.configure(form='human')\n" + CONFIGURED))) == 1

    @pytest.mark.parametrize("option", [{"form": "xml"}, {"level": "loud"}])
    def test_an_unknown_form_or_level_is_refused(self, option: dict[str, str]) -> None:
        with pytest.raises(InvalidOption):
            logs.configure(**option)  # pyright: ignore[reportArgumentType] -- one of two texts

    def test_a_closed_stream_does_not_end_the_program(self) -> None:
        broken = "import os; logs.configure(); os.close(2)" + COMPLETED
        assert through_a_pipe(broken) == ""


class TestALogLine:
    def test_is_one_line_whatever_a_message_contains(self) -> None:
        emit = "log.emit(events.JOB_RELEASED, reason='first\\nsecond\\x1b[31m\\u2028third', **JOB)"
        foreign = "logging.getLogger('mine').info('first\\nsecond\\x1b[31m\x85third')"
        program = f"logs.configure(form='%s')\n{emit}\n{foreign}"
        for form in ("json", "plain"):
            written = through_a_pipe(program % form)
            assert len(written.splitlines()) == 2
            assert "\x1b" not in written
            assert "second" in written

    def test_has_the_sentence_of_the_event_from_warnings_on(self, stream: io.StringIO) -> None:
        Log().emit(events.DUTY_FAILED, duty="reap", queue="q", error="OSError", reason="no")
        [line] = objects(stream.getvalue())
        assert line["sentence"] == events.DUTY_FAILED.sentence

    def test_has_the_traceback_of_an_exception(self, stream: io.StringIO) -> None:
        with pytest.raises(ValueError, match="two") as caught:
            raise ValueError("two\nlines")
        Log().emit(events.SERVER_BACK, caught.value, server="s", away=1)
        [line] = objects(stream.getvalue())
        assert str(line["exception"]).endswith("ValueError: two\nlines")

    def test_for_people_has_the_traceback_indented_below(self) -> None:
        program = """
logs.configure(form="plain")
try:
    raise ValueError("sly\\n2026-01-01T00:00:00.000Z [info     ] job.completed")
except ValueError as error:
    log.emit(events.SERVER_BACK, error, server="s", away=1)
"""
        _, *below = through_a_pipe(program).splitlines()
        assert len(below) > 3
        assert [line for line in below if not line.startswith("    ")] == []

    def test_truncates_enormous_texts(self, stream: io.StringIO) -> None:
        Log().emit(events.JOB_RELEASED, **JOB, reason="x" * 5_000_000)
        assert len(stream.getvalue()) < 1_500

    def test_accepts_text_that_is_not_utf_8(self, stream: io.StringIO) -> None:
        Log().emit(events.JOB_RELEASED, **JOB, reason="\ud800 ä")
        [line] = objects(stream.getvalue())
        assert line["reason"] == "\\ud800 ä"

    def test_omits_values_of_types_that_json_lacks(self, stream: io.StringIO) -> None:
        Log().emit(events.JOB_RELEASED, **JOB, reason={"card": "4111"})
        [line] = objects(stream.getvalue())
        assert line["reason"] == "<dict>"


class TestOtherLoggers:
    def test_write_in_the_same_form_and_name_the_running_job(self, stream: io.StringIO) -> None:
        current = current_job.set(JobLine("01JB7Q", "reviews", "review", 2))
        logging.getLogger("mine").warning("half %s", "done")
        current_job.reset(current)
        logging.getLogger("mine").warning("idle")
        about, idle = objects(stream.getvalue())
        assert about["event"] == "half done"
        assert about["logger"] == "mine"
        assert (about["job"], about["attempt"]) == ("01JB7Q", 2)
        assert "job" not in idle

    def test_warnings_of_python_become_lines_too(self) -> None:
        program = "import warnings; logs.configure(); warnings.warn('old thing')"
        [line] = objects(through_a_pipe(program))
        assert line["logger"] == "py.warnings"

    def test_a_host_programs_own_format_shows_our_event_in_one_line(self) -> None:
        host = "logging.basicConfig(format='%(name)s|%(message)s', level='INFO')"
        assert through_a_pipe(host + COMPLETED) == (
            "towpath|job.completed job=01JB7Q queue=reviews handler=review attempt=2 "
            "waited=0.0123 ran=1.5 worker=build-3\n"
        )

    def test_a_host_programs_own_format_shows_a_long_event_in_one_line_too(self) -> None:
        host = "logging.basicConfig(level='INFO')\n"
        emit = "log.emit(events.JOB_RELEASED, reason='first\\nsecond', **JOB)"
        assert len(through_a_pipe(host + emit).splitlines()) == 1

    def test_a_host_program_without_configuration_gets_no_lines_below_warning(self) -> None:
        assert through_a_pipe(COMPLETED) == ""


class TestManyEventsAtOnce:
    """`emit_each` writes the same lines as `emit`, to every handler."""

    EACH = "[JOB | {'waited': 0.0123, 'ran': n} for n in range(3)]"
    ONE_BY_ONE = f"\nfor fields in {EACH}: log.emit(events.JOB_COMPLETED, **fields)\n"
    AT_ONCE = f"\nlog.emit_each(events.JOB_COMPLETED, {EACH})\n"

    @pytest.mark.parametrize(
        "host",
        [
            "logs.configure()",
            "logs.configure(form='human')",
            "logging.basicConfig(level='INFO')",
            "logs.configure(); logging.getLogger('towpath').addHandler(logging.StreamHandler())",
            "logs.configure(); logging.getLogger().addHandler(logging.StreamHandler())",
            "logs.configure(); logging.getLogger('towpath').addFilter(lambda r: r.msg['ran'] != 1)",
            "logs.configure(); logging.getLogger().handlers[0].addFilter(lambda r: r.msg['ran'])",
            "logs.configure(); logging.getLogger().handlers[0].setLevel('WARNING')",
            "logs.configure(level='warning')",
            "logs.configure(); logging.getLogger('towpath').propagate = False",
            (
                "logs.configure()\n"
                "def collect(self, record): print(record.msg, file=__import__('sys').stderr)\n"
                "logging.Logger.callHandlers = collect"
            ),
            (
                "import functools, sys\n"
                "logs.configure(); theirs = logging.Logger.callHandlers\n"
                "@functools.wraps(theirs)\n"
                "def collect(self, record):\n"
                "    print(record.msg, file=sys.stderr)\n"
                "    theirs(self, record)\n"
                "logging.Logger.callHandlers = collect"
            ),
            (
                "import functools, sys\n"
                "logs.configure(); theirs = logging.Handler.handle\n"
                "@functools.wraps(theirs)\n"
                "def collect(self, record):\n"
                "    print(record.msg, file=sys.stderr)\n"
                "    theirs(self, record)\n"
                "logging.Handler.handle = collect"
            ),
            (
                "logs.configure()\n"
                "theirs = logging.Formatter('%(name)s %(message)s')\n"
                "logging.getLogger().handlers[0].setFormatter(theirs)"
            ),
        ],
    )
    def test_are_written_as_one_by_one(self, host: str) -> None:
        moment = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z")
        one_by_one, at_once = (
            moment.sub("", through_a_pipe(host + way)) for way in (self.ONE_BY_ONE, self.AT_ONCE)
        )
        assert at_once == one_by_one

    def test_are_one_write_to_the_stream(self) -> None:
        """This runs in a process of its own, because pytest captures the lines of this one."""
        program = (
            "import io, sys\n"
            "class Writes(io.StringIO):\n"
            "    def write(self, text): print(text.count('\\n'), file=sys.stderr)\n"
            "logs.configure(form='json', stream=Writes())"
        )
        assert through_a_pipe(program + self.AT_ONCE) == "3\n"

    def test_are_written_in_parts_that_a_pipe_writes_whole(self) -> None:
        """The processes of a worker share a pipe, which may mix writes that are larger than its
        buffer.
        """
        program = (
            "import io, sys\n"
            "class Writes(io.StringIO):\n"
            "    def write(self, text):\n"
            "        ends, lines = text[-1:] == '\\n', text.count('\\n')\n"
            "        print(len(text.encode()), ends, lines, file=sys.stderr)\n"
            "logs.configure(form='json', stream=Writes())\n"
            "each = [JOB | {'job': 'n' * n, 'waited': 0.0123, 'ran': n} for n in range(100)]\n"
            "log.emit_each(events.JOB_COMPLETED, each)"
        )
        writes = [line.split() for line in through_a_pipe(program).splitlines()]
        assert all(int(size) <= select.PIPE_BUF and whole == "True" for size, whole, _ in writes)
        assert sum(int(lines) for _, _, lines in writes) == 100
        assert len(writes) < 10

    def test_to_a_closed_stream_do_not_end_the_program(self) -> None:
        assert through_a_pipe("import os; logs.configure(); os.close(2)" + self.AT_ONCE) == ""

    def test_with_a_missing_field_are_an_error_in_tests(self, stream: io.StringIO) -> None:
        with pytest.raises(CatalogueMismatch, match="away"):
            Log().emit_each(events.SERVER_BACK, [{"server": "s"}])


class TestTheFieldsOfAnEvent:
    def test_that_are_missing_are_an_error_in_tests(self, stream: io.StringIO) -> None:
        with pytest.raises(CatalogueMismatch, match="away"):
            Log().emit(events.SERVER_BACK, server="s")

    def test_that_are_unknown_are_an_error_in_tests(self, stream: io.StringIO) -> None:
        with pytest.raises(CatalogueMismatch, match="payload"):
            Log().emit(events.SERVER_BACK, server="s", away=1, payload="p")

    def test_that_a_log_is_bound_to_are_common_to_all_events(self) -> None:
        with pytest.raises(InvalidOption):
            Log(job="01JB7Q")

    def test_that_are_unknown_only_cause_a_warning_in_a_running_worker(self) -> None:
        program = "logs.configure()\nlog.emit(events.SERVER_BACK, server='s', payload='canary')"
        warning, line = objects(through_a_pipe(program))
        assert "server.back: missing fields: away" in str(warning["event"])
        assert line["event"] == "server.back"
        assert "payload" not in line
