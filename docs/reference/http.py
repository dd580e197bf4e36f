"""The page about the HTTP API, read off its own description."""

from typing import Any

from towpath.engine.engine import Engine
from towpath.ledger.ledger import Ledger
from towpath.server.build import ServerSetup, build
from towpath.telemetry.logs import Log
from towpath.telemetry.metrics import Metrics
from towpath.web.limits import ServerLimits

PAGE = """# The HTTP API

A running server describes itself at `/openapi.json` (OpenAPI {openapi}, with examples; any key can
read it). This page has the same content. [How to serve](../how-to/serve-over-http.md) shows how to
use it.

Requests and answers are JSON. Times are ISO 8601 in UTC, durations are seconds. Send the key as
`Authorization: Bearer tp_…` or `X-API-Key: tp_…`. Only `/livez`, `/readyz`, `/health` and the
webhooks, which are signed, need no key. Names in paths are percent-encoded. Errors are
`application/problem+json` with `type`, `title`, `status`, `detail` and `remedy`. Any path may also
answer with 400, 401, 403, 408, 413, 415, 422, 429 or 503; the tables below leave these out.
"""

SHARED = {"400", "401", "403", "408", "413", "415", "422", "429", "503"}


def http_page() -> str:
    """One section per subject, one part per path, then the bodies."""
    described = description()
    page = PAGE.format(openapi=described["openapi"])
    for tag in described["tags"]:
        page += f"\n## {tag['name'].capitalize()}\n\n{tag['description']}\n"
        for path, methods in described["paths"].items():
            for method, operation in methods.items():
                if tag["name"] in operation["tags"]:
                    page += _operation(f"{method.upper()} {path}", operation)
    return page + _bodies(described["components"]["schemas"])


def description() -> dict[str, Any]:
    """The description of a server that was never started."""
    setup = ServerSetup(
        engine=Engine("redis://localhost"),
        ledger=Ledger("sqlite:///never-opened.db"),
        limits=ServerLimits(),
        metrics=Metrics(),
        log=Log(),
        version="-",
    )
    return build(setup).openapi()


def _operation(name: str, operation: dict[str, Any]) -> str:
    lines = [f"\n### `{name}`\n", f"{operation['description']}\n"]
    if operation.get("deprecated"):
        lines.append(f"Deprecated: use `POST {name.partition(' ')[2]}/cancel`.\n")
    asked = [
        f"`{_shape(content['schema'])}`" for content in _contents(operation.get("requestBody", {}))
    ]
    if asked:
        lines.append(f"Body: {', '.join(asked)}.\n")
    params = [param for param in operation.get("parameters", []) if param["in"] != "path"]
    if params:
        lines += ["| parameter | | meaning |", "|---|---|---|", *map(_parameter, params), ""]
    answers = [response for response in operation["responses"].items() if response[0] not in SHARED]
    lines += ["| answer | body | meaning |", "|---|---|---|"]
    lines += [_answer(status, answer) for status, answer in answers]
    return "\n".join(lines) + "\n"


def _parameter(param: dict[str, Any]) -> str:
    need = "required" if param.get("required") else _default(param["schema"])
    told = param.get("description") or param["schema"].get("description", "")
    return f"| `{param['name']}` ({param['in']}) | {need} | {told} |"


def _answer(status: str, answer: dict[str, Any]) -> str:
    shapes = [_shape(content.get("schema", {})) for content in _contents(answer)]
    shape = ", ".join(f"`{shape}`" for shape in shapes if shape)
    told = answer["description"].replace("Successful Response", "")
    return f"| {status} | {shape} | {told} |"


def _contents(of: dict[str, Any]) -> list[dict[str, Any]]:
    return list(of.get("content", {}).values())


def _bodies(schemas: dict[str, Any]) -> str:
    page = "\n## Bodies\n"
    for name, schema in sorted(schemas.items()):
        if "properties" not in schema:
            continue
        about = _flat(schema.get("description", ""))
        page += f"\n### {name}\n" + (f"\n{about}\n" if about else "")
        page += "\n| field | type | | meaning |\n|---|---|---|---|\n"
        required = schema.get("required", [])
        for field, field_schema in schema["properties"].items():
            need = "required" if field in required else _default(field_schema)
            told = _flat(field_schema.get("description", ""))
            page += (
                f"| `{field}` | {_shape(field_schema)}{_bounds(field_schema)} | {need} | {told} |\n"
            )
    return page


def _default(schema: dict[str, Any]) -> str:
    value = schema.get("default")
    return "" if value is None or value in ({}, []) else f"default `{value}`"


def _flat(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _shape(schema: dict[str, Any]) -> str:
    """A type in a word or two."""
    if "$ref" in schema:
        name: str = schema["$ref"].rpartition("/")[2]
        return "any JSON" if name == "JsonValue" else name
    if several := schema.get("anyOf") or schema.get("oneOf"):
        return " or ".join(map(_shape, several))
    if schema.get("type") == "array":
        return f"list of {_shape(schema['items'])}"
    if "enum" in schema or "const" in schema:
        return ", ".join(str(value) for value in schema.get("enum", [schema.get("const")]))
    if schema.get("type") == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"{_shape(schema['additionalProperties'])} by name"
    kind: str = schema.get("type", "")
    return "time" if schema.get("format") == "date-time" else kind


_ALL = 2**53
"""A bound above it is that of the type."""
_WORDS = {
    "minimum": "from {:.16g}",
    "exclusiveMinimum": "above {:.16g}",
    "maximum": "up to {:.16g}",
    "minLength": "at least {}",
    "maxLength": "up to {} characters",
}


def _bounds(schema: dict[str, Any]) -> str:
    """What the type does not say."""
    parts = [schema, *schema.get("anyOf", [])]
    told = [
        _WORDS[word].format(part[word])
        for part in parts
        for word in _WORDS
        if 0 < part.get(word, 0) < _ALL
    ]
    return f", {', '.join(told)}" if told else ""
