"""Traces: one trace from the request to the end of its job; nothing without an SDK."""

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from tests.telemetry.streams import ROOT
from towpath.telemetry import traces


@pytest.fixture(scope="module")
def told() -> dict[str, Any]:
    """The spans and lines of a process with an SDK. A process of its own, because a provider is set
    once.
    """
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-m", "tests.telemetry.traced_program"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def span(told: dict[str, Any], name: str, attempt: int | None = None) -> dict[str, Any]:
    [found] = [
        one
        for one in told["spans"]
        if one["name"] == name and one["attributes"].get("towpath.attempt") == attempt
    ]
    return found


class TestTheProducerSpan:
    def test_is_a_child_of_the_programs_current_span(self, told: dict[str, Any]) -> None:
        submit = span(told, "submit reviews")
        assert submit["kind"] == "PRODUCER"
        assert submit["parent"] == span(told, "request")["id"]
        assert submit["attributes"] == {
            "messaging.system": "towpath",
            "messaging.destination.name": "reviews",
            "messaging.operation.name": "submit",
            "messaging.operation.type": "send",
            "messaging.batch.message_count": 2,
            "towpath.handler": "review",
        }

    def test_is_stored_in_the_job(self, told: dict[str, Any]) -> None:
        submit = span(told, "submit reviews")
        assert list(told["headers"]) == ["traceparent"]
        assert told["headers"]["traceparent"].startswith(f"00-{submit['trace']}-{submit['id']}-")


class TestTheConsumerSpan:
    def test_is_a_child_of_the_producer_and_linked_to_it(self, told: dict[str, Any]) -> None:
        """The current span of the worker's own loop does not matter."""
        submit, process = span(told, "submit reviews"), span(told, "process reviews", 1)
        assert process["kind"] == "CONSUMER"
        assert process["trace"] == submit["trace"]
        assert process["parent"] == submit["id"]
        assert process["links"] == [submit["id"]]

    def test_names_the_job_and_the_attempt(self, told: dict[str, Any]) -> None:
        assert span(told, "process reviews", 1)["attributes"] == {
            "messaging.system": "towpath",
            "messaging.destination.name": "reviews",
            "messaging.operation.name": "process",
            "messaging.operation.type": "process",
            "messaging.message.id": "01JB7Q",
            "towpath.handler": "review",
            "towpath.attempt": 1,
        }

    def test_of_a_failed_attempt_has_the_class_of_the_error_but_not_its_text(
        self, told: dict[str, Any]
    ) -> None:
        failed = span(told, "process reviews", 2)
        assert failed["status"] == ["ERROR", None]
        assert failed["events"] == []
        assert failed["attributes"]["error.type"] == "ValueError"
        assert "canary" not in json.dumps(told)

    @pytest.mark.parametrize("attempt", [3, 4])
    def test_begins_a_trace_when_the_job_has_no_valid_one(
        self, told: dict[str, Any], attempt: int
    ) -> None:
        """It does not continue the trace of the worker's own loop."""
        alone = span(told, "process reviews", attempt)
        assert (alone["parent"], alone["links"]) == ("", [])
        others = (span(told, "submit reviews"), span(told, "loop"))
        assert alone["trace"] not in [other["trace"] for other in others]


class TestLogLinesInASpan:
    def test_name_the_trace_and_others_do_not(self, told: dict[str, Any]) -> None:
        process = span(told, "process reviews", 1)
        inside, outside = told["lines"]
        assert (inside["trace_id"], inside["span_id"]) == (process["trace"], process["id"])
        assert "trace_id" not in outside


class TestWithoutAnSdk:
    def test_no_span_is_active_and_jobs_have_no_trace(self, told: dict[str, Any]) -> None:
        assert not told["before"]
        assert not traces.active()
        assert traces.inject() == {}
        assert traces.current_ids() is None

    def test_spans_can_be_entered_and_record_nothing(self) -> None:
        with traces.producer_span("q", handler="h") as producer:
            assert producer is None
            assert traces.inject() == {}
        headers = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
        with traces.consumer_span(headers, queue="q", handler="h", job="j", attempt=1) as consumer:
            assert consumer is None

    def test_an_exception_passes_through_a_span(self) -> None:
        with pytest.raises(ValueError, match="seen"), traces.producer_span("q", handler="h"):
            raise ValueError("seen")


class TestOpenTelemetry:
    """The program imports it; Towpath does not."""

    LATER = (
        "from towpath.telemetry import traces\n"
        "import sys\n"
        "print(traces.active(), 'opentelemetry' in sys.modules)\n"
        "from opentelemetry import trace\n"
        "from opentelemetry.sdk.trace import TracerProvider\n"
        "print(traces.active())\n"
        "trace.set_tracer_provider(TracerProvider())\n"
        "print(traces.active())\n"
    )

    WHILE_IMPORTED = (
        "import importlib.abc, logging, sys, threading\n"
        "from towpath.telemetry import logs\n"
        "logs.configure(form='plain', stream=sys.stdout)\n"
        "logged = threading.Thread(target=lambda: logging.warning('by another thread'))\n"
        "class Hook(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        "        if name == 'opentelemetry.trace.span':\n"
        "            logged.start()\n"
        "            logged.join()\n"
        "            logging.warning('by this thread')\n"
        "sys.meta_path.insert(0, Hook())\n"
        "import opentelemetry.trace\n"
    )

    def test_may_be_imported_while_lines_are_logged(self) -> None:
        """Neither waits for the other, and no line is lost."""
        words = printed(self.WHILE_IMPORTED, {})
        assert " ".join(words).count("thread") == 2

    def test_is_used_once_the_program_sets_it_up(self) -> None:
        assert printed(self.LATER, {}) == ["False", "False", "False", "True"]

    def test_is_used_where_the_environment_names_a_provider(self) -> None:
        environment = {"OTEL_PYTHON_TRACER_PROVIDER": "sdk_tracer_provider"}
        program = "from towpath.telemetry import traces; print(traces.active())"
        assert printed(program, environment) == ["True"]


def printed(program: str, environment: dict[str, str]) -> list[str]:
    """The words that a new process prints."""
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return ran.stdout.split()
