"""What the routes declare for the audit log agrees with their bodies and answers."""

from collections.abc import Iterator
from typing import Any

from fastapi.routing import APIRoute

from tests.apps.test_application import built
from towpath.apps.application import applications
from towpath.server.routes import jobs, operating, queues, schedules, work
from towpath.web.audit import AuditRule, changes_of, must_declare, rule_of

SECRETIVE = {
    "payload",
    "payload_base64",
    "headers",
    "result",
    "secret",
    "token",
    "message",
    "params",
}
"""Fields whose values may never be written down."""


def changing_routes() -> Iterator[tuple[APIRoute, AuditRule]]:
    routers: list[Any] = [module.router for module in (jobs, operating, queues, schedules, work)]
    for application in applications():
        routers += application.load(application.http).routers
    for router in routers:
        for route in router.routes:
            if changes_of(route):
                assert not must_declare(route), route.path
                rule = rule_of(route)
                assert rule is not None
                yield route, rule


def fields_of(schema: Any, description: Any) -> set[str]:
    """The names of the fields that an object of *schema* may have."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return fields_of(description["components"]["schemas"][name], description)
    parts = [part for kind in ("oneOf", "anyOf", "allOf") for part in schema.get(kind, [])]
    found = [fields_of(part, description) for part in parts]
    return set(schema.get("properties", {})).union(*found)


def contents_of(part: Any, description: Any) -> set[str]:
    found = [fields_of(one["schema"], description) for one in part.get("content", {}).values()]
    return set[str]().union(*found)


def test_every_field_declared_for_the_audit_log_exists_and_none_is_a_secret() -> None:
    description: Any = built().openapi()
    checked = 0
    for route, rule in changing_routes():
        assert not {*rule.fields, *rule.answer} & SECRETIVE, route.path
        if not route.include_in_schema:
            continue
        for method in changes_of(route):
            operation = description["paths"][route.path][method.lower()]
            given = {parameter["name"] for parameter in operation.get("parameters", [])}
            given |= contents_of(operation.get("requestBody", {}), description)
            answers = [part for status, part in operation["responses"].items() if status < "300"]
            answered = set[str]().union(*(contents_of(part, description) for part in answers))
            assert set(rule.fields) <= given, (method, route.path)
            assert set(rule.answer) <= answered, (method, route.path)
            checked += 1
    assert checked > 40


def test_submits_and_settles_with_a_key_write_no_audit_entry() -> None:
    rules = {
        (method, route.path): rule
        for route, rule in changing_routes()
        for method in changes_of(route)
    }
    jobs_of = "/api/v1/queues/{queue}"
    for method, path in (
        ("POST", f"{jobs_of}/jobs"),
        ("POST", f"{jobs_of}/claim"),
        ("POST", f"{jobs_of}/jobs/{{id}}/renew"),
        ("POST", f"{jobs_of}/jobs/{{id}}/complete"),
        ("POST", "/api/v1/message"),
        ("POST", "/api/v1/timers"),
        ("PUT", "/api/v1/uploads/{id}/chunks/{number}"),
        ("PATCH", "/files/{id}"),
    ):
        assert not rules[method, path].by_keys, path
