"""GitHub's own description of its API (OpenAPI 3.0), with which requests, answers and webhooks are
compared.

`make` downloads the file, which is part of the npm package @octokit/openapi.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote

from jsonschema import Draft4Validator
from jsonschema.protocols import Validator
from jsonschema.validators import extend  # pyright: ignore[reportUnknownVariableType] -- has no types
from referencing import Registry, Resource
from referencing.jsonschema import DRAFT4

from towpath.testing.github.exchange import ApiRequest

NPM = Path(sys.prefix) / "npm"
FILE = NPM / "node_modules" / "@octokit" / "openapi" / "generated" / "api.github.com.json"
MISSING = f"{FILE.name} is missing: `make .venv/{NPM.name}` brings it, and needs npm"
_HERE = "urn:github"
_SEVERAL = ("ref", "path", "basehead", "branch")
"""Parameters that may be several parts of a path."""
_FAULTS_SHOWN = 5


def _nullable(keyword: str) -> Any:
    """OpenAPI 3.0 has a keyword beside the schema which allows null."""
    plain = cast("dict[str, Any]", Draft4Validator.VALIDATORS)[keyword]

    def check(validator: Any, value: Any, instance: Any, schema: dict[str, Any]) -> Iterable[Any]:
        if instance is None and schema.get("nullable"):
            return ()
        return plain(validator, value, instance, schema) or ()

    return check


_VALIDATOR = cast(
    "Any",
    extend(
        Draft4Validator,
        {keyword: _nullable(keyword) for keyword in ("type", "enum", "allOf", "anyOf", "oneOf")},
    ),
)


class GitHubDescription:
    """What GitHub documents that its API accepts and answers."""

    def __init__(self, document: dict[str, Any]) -> None:
        self._document = document
        resource: Resource[Any] = Resource(contents=document, specification=DRAFT4)
        registry: Registry[Any] = Registry()
        self._registry = registry.with_resource(_HERE, resource)
        self._paths = [(self._pattern(path), path) for path in document["paths"]]

    @staticmethod
    def _pattern(path: str) -> re.Pattern[str]:
        def part(found: re.Match[str]) -> str:
            return f"(?P<{found[1]}>{'.+' if found[1] in _SEVERAL else '[^/]+'})"

        return re.compile(re.sub(r"\\\{([a-z_]+)\\\}", part, re.escape(path)))

    # ── differences ──────────────────────────────────────────────────────────────────────

    def misfits(self, request: ApiRequest) -> list[str]:
        """What is wrong with a request, in sentences; none if it is as described."""
        place = f"{request.method} {request.path}"
        found = self._operation(request)
        if found is None:
            return [f"{place}: there is no such operation"]
        operation, parts = found
        faults = [
            *self._of_parameters(operation, request, parts),
            *self._of_body(operation, request),
        ]
        return [f"{place}: {fault}" for fault in faults]

    def misfits_of_answer(self, request: ApiRequest, status: int, content: Any) -> list[str]:
        """What is wrong with an answer."""
        found = self._operation(request)
        assert found is not None
        answer = found[0]["responses"].get(str(status))
        if answer is None:
            return [f"{request.method} {request.path} is never answered {status}"]
        schema = self._whole(answer).get("content", {}).get("application/json", {}).get("schema")
        return list(self._faults(schema, content)) if schema else []

    def misfits_of_webhook(self, event: str, payload: dict[str, Any]) -> list[str]:
        """What is wrong with the contents of a webhook."""
        name = f"{event}-{payload['action']}".replace("_", "-")
        body = self._document["x-webhooks"][name]["post"]["requestBody"]
        return list(self._faults(body["content"]["application/json"]["schema"], payload))

    # ── how they are found ───────────────────────────────────────────────────────────────

    def _operation(self, request: ApiRequest) -> tuple[dict[str, Any], dict[str, str]] | None:
        # Where GitHub redirects to after a repository was renamed: the same, by its number.
        place = re.sub("^/repositories/[0-9]+", "/repos/owner/name", request.path)
        matches = [
            (path.count("{"), path, found.groupdict())
            for pattern, path in self._paths
            if (found := pattern.fullmatch(place))
        ]
        for _, path, parts in sorted(matches, key=lambda match: match[0]):
            if request.method.lower() in self._document["paths"][path]:
                named = {name: unquote(part) for name, part in parts.items()}
                return self._document["paths"][path][request.method.lower()], named
        return None

    def _of_parameters(
        self, operation: dict[str, Any], request: ApiRequest, parts: dict[str, str]
    ) -> Iterator[str]:
        known = [self._whole(parameter) for parameter in operation.get("parameters", [])]
        queries = {
            parameter["name"]: parameter for parameter in known if parameter["in"] == "query"
        }
        for name, values in request.query.items():
            if name not in queries:
                yield f"there is no parameter {name}"
            else:
                for value in values:
                    yield from self._of_text(queries[name], value)
        for name, parameter in queries.items():
            if parameter.get("required") and name not in request.query:
                yield f"the parameter {name} is missing"
        for parameter in known:
            if parameter["in"] == "path":
                yield from self._of_text(parameter, parts[parameter["name"]])

    def _of_text(self, parameter: dict[str, Any], text: str) -> Iterator[str]:
        schema = self._whole(parameter.get("schema", {}))
        value: Any = text
        if schema.get("type") == "integer" and re.fullmatch(r"-?[0-9]+", text):
            value = int(text)
        elif schema.get("type") == "boolean" and text in ("true", "false"):
            value = text == "true"
        for fault in self._faults(schema, value):
            yield f"{parameter['name']}: {fault}"

    def _of_body(self, operation: dict[str, Any], request: ApiRequest) -> Iterator[str]:
        described = self._whole(operation.get("requestBody", {}))
        schema = described.get("content", {}).get("application/json", {}).get("schema")
        if not request.body:
            if described.get("required"):
                yield "the body is missing"
            return
        if schema is None:
            yield "it takes no body"
            return
        if not request.headers.get("content-type", "").startswith("application/json"):
            yield "the body's content type is not JSON"
        content = request.content
        yield from self._faults(schema, content)
        fields = self._whole(schema).get("properties")
        if fields and isinstance(content, dict):
            for name in cast("dict[str, Any]", content).keys() - fields.keys():
                yield f"the body has no field {name}"

    def _whole(self, schema: dict[str, Any]) -> dict[str, Any]:
        """The target of a reference."""
        while "$ref" in schema:
            found: Any = self._document
            for part in schema["$ref"].removeprefix("#/").split("/"):
                found = found[part]
            schema = found
        return schema

    def _faults(self, schema: dict[str, Any], content: Any) -> Iterator[str]:
        # References lead into the document; those of the schema itself begin there.
        rooted = json.loads(json.dumps(schema).replace('"#/', f'"{_HERE}#/'))
        validator: Validator = _VALIDATOR(rooted, registry=self._registry)
        for at, fault in enumerate(validator.iter_errors(content)):
            if at == _FAULTS_SHOWN:
                return
            where = ".".join(str(part) for part in fault.absolute_path)
            yield f"{where or 'all'}: {fault.message[:300]}"


@cache
def github_description() -> GitHubDescription | None:
    """The description; None if `make` could not download it."""
    return GitHubDescription(json.loads(FILE.read_bytes())) if FILE.exists() else None
