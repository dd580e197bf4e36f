"""The API agrees with its description: OpenAPI 3.1, checked by schemathesis."""

import os
import sys
from typing import Any, cast

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from schemathesis.specs.openapi import checks

from tests.amounts import amount
from tests.server.serving import RunningServer, problem
from tests.waiting import HANGS

SEED = int(os.environ.get("SCHEMA_SEED", "20260716"))
EXAMPLES = int(os.environ.get("SCHEMA_EXAMPLES", amount(2, thoroughly=25)))
library: Any = schemathesis
"""Its types are partly unknown."""
openapi: Any = checks
CHECKS = [
    library.checks.not_a_server_error,
    openapi.status_code_conformance,
    openapi.content_type_conformance,
    openapi.response_headers_conformance,
    openapi.response_schema_conformance,
]
QUEUES, IDS = ("schema-a", "schema-b"), ("there", "a/b", "ü")
"""So that some requests are about jobs that exist."""


@pytest.fixture(scope="module")
def description(running: RunningServer) -> Any:
    client = running.client()
    for queue in QUEUES:
        for id in IDS:
            client.post(f"/api/v1/queues/{queue}/jobs", json={"payload": 1, "id": id})
    for id in IDS:
        task = {"repository": "octo/repo", "head": "a1" * 20, "ref": "main", "id": id}
        client.post("/api/v1/reviews", json=task)
    return client.get("/openapi.json").json()


def operations(description: Any) -> list[tuple[str, str, Any]]:
    return [
        (method.upper(), path, operation)
        for path, methods in description["paths"].items()
        for method, operation in methods.items()
    ]


def test_the_description_is_openapi_3_1_and_every_field_has_a_sentence(description: Any) -> None:
    assert description["openapi"].startswith("3.1")
    for method, path, operation in operations(description):
        assert operation["description"], (method, path)
        assert operation["tags"], (method, path)


def test_every_body_has_an_example(description: Any) -> None:
    schemas = description["components"]["schemas"]
    for method, path, operation in operations(description):
        for content in operation.get("requestBody", {}).get("content", {}).values():
            schema = content["schema"]
            refs = [part.get("$ref", "") for part in [schema, *schema.get("oneOf", [])]]
            named = [schemas[ref.rpartition("/")[2]] for ref in refs if ref]
            assert any(part.get("examples") for part in named), (method, path)


def test_every_path_but_health_needs_a_key_and_says_so(description: Any) -> None:
    for method, path, operation in operations(description):
        is_open = path in ("/livez", "/readyz", "/health")
        assert bool(operation["security"]) is not is_open, (method, path)
        assert is_open or "401" in operation["responses"], (method, path)


def test_the_answer_for_an_existing_upload_is_described(
    running: RunningServer, description: Any
) -> None:
    headers, body = {"Idempotency-Key": "described"}, {"name": "a", "size": 1}
    answers = [
        running.client().post("/api/v1/uploads", json=body, headers=headers) for _ in range(2)
    ]
    assert [answer.status_code for answer in answers] == [201, 200]
    assert {"200", "201"} <= set(description["paths"]["/api/v1/uploads"]["post"]["responses"])


def test_every_refusal_is_a_problem(description: Any) -> None:
    for method, path, operation in operations(description):
        for status, answer in operation["responses"].items():
            if int(status) >= 400 and path != "/readyz":
                assert list(answer["content"]) == ["application/problem+json"], (method, path)
            if status in ("429", "503") and path != "/readyz":
                assert "Retry-After" in answer["headers"], (method, path)


def test_every_answer_is_as_described(running: RunningServer, description: Any) -> None:
    """Sensible and senseless requests to every path: no 500, no answer that is not described."""
    sys.stdout.write(f"SCHEMA_SEED={SEED} SCHEMA_EXAMPLES={EXAMPLES}\n")
    schema = library.openapi.from_dict(description)
    statuses: set[tuple[str, int]] = set()
    for found in schema.get_all_operations():
        operation = found.ok()
        if not operation.path.endswith("/events"):  # they never end, and have tests of their own
            statuses |= look_through(running, operation)
    assert {200, 202, 204, 404, 409, 422} <= {status for _, status in statuses}
    told = {e["event"] for e in running.events()}
    assert "http.defect" not in told


def look_through(running: RunningServer, operation: Any) -> set[tuple[str, int]]:
    """All statuses of requests to *operation*."""
    seen: set[tuple[str, int]] = set()
    cases: Any = st.one_of(
        *(operation.as_strategy(generation_mode=mode) for mode in library.GenerationMode)
    )

    @seed(SEED)
    @settings(
        max_examples=EXAMPLES,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )
    @given(case=cases, queue=st.sampled_from([*QUEUES, None]), id=st.sampled_from([*IDS, None]))
    def ask(case: Any, queue: str | None, id: str | None) -> None:
        if id is not None and operation.path.startswith("/api/v1/reviews"):
            id = f"api-{id}"
        for name, value in (("queue", queue), ("id", id)):
            if value is not None and name in case.path_parameters:
                case.path_parameters[name] = value
        wait_little(case.body)
        headers = {"X-API-Key": running.key}
        answer = case.call(base_url=running.address, headers=headers, timeout=HANGS)
        seen.add((operation.label, answer.status_code))
        case.validate_response(answer, checks=CHECKS)

    ask()
    return seen


def wait_little(body: Any) -> None:
    """No job comes while the test waits."""
    if isinstance(body, dict) and "wait" in body:
        cast("dict[str, Any]", body)["wait"] = 0.01


def test_an_unknown_path_and_a_wrong_method_are_problems_too(running: RunningServer) -> None:
    client = running.client()
    problem(client.get("/api/v1/nothing"), 404)
    problem(client.get("/api/v1/queues/"), 404)
    problem(client.get("/api/v1/queues/mails/"), 404)
    wrong = client.put("/api/v1/queues/mails/jobs")
    problem(wrong, 405)
    assert wrong.headers["allow"]
