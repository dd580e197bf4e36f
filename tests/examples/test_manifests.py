"""The files of `examples/deploy`, checked by the tools that read them: Kubernetes and compose by
their own schemas, systemd by its own check, the Dockerfile by a linter. Each check finds a planted
fault.
"""

import copy
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator
from kubernetes_validate import (  # pyright: ignore[reportMissingTypeStubs] -- typed in its source
    SchemaNotFoundError,
    ValidationError,
    validate,
)

from tests.architecture.sources import ROOT
from tests.waiting import HANGS

DEPLOY = ROOT / "examples" / "deploy"
VERSIONS = ("1.28", "1.37")
"""Of Kubernetes: an old one that is still in use, and the newest that there are schemas of."""
REMOVED = object()


def spoilt(told: Any, place: str, value: object) -> Any:
    """A copy with another *value* at that place, or without it."""
    copied: Any = copy.deepcopy(told)
    *steps, last = (int(step) if step.isdigit() else step for step in place.split("."))
    at = copied
    for step in steps:
        at = at[step]
    if value is REMOVED:
        del at[last]
    else:
        at[last] = value
    return copied


# ── Kubernetes ───────────────────────────────────────────────────────────────────────────


def manifests() -> list[dict[str, Any]]:
    return list(filter(None, yaml.safe_load_all((DEPLOY / "kubernetes.yml").read_text())))


def refused(manifest: dict[str, Any], version: str) -> list[str]:
    """What an API server of that version would refuse."""
    try:
        validate(manifest, version, strict=True)
    except ValidationError as error:
        return [str(error.message)]
    except SchemaNotFoundError as error:
        return [error.message]
    return []


def pods(all_of: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Templates of pods, with the names of their owners."""
    for manifest in all_of:
        if "template" in manifest["spec"]:
            yield manifest, manifest["spec"]["template"]


def dangling(all_of: list[dict[str, Any]]) -> list[str]:
    """The names in a manifest that refer to nothing, which no schema finds."""
    labels = [pod.get("metadata", {}).get("labels", {}) for _, pod in pods(all_of)]
    ports = {port["name"] for _, pod in pods(all_of) for one in pod["spec"]["containers"]
             for port in one.get("ports", [])}  # fmt: skip
    found: list[str] = []
    for manifest in all_of:
        wanted = manifest["spec"].get("selector", {})
        chosen = wanted.get("matchLabels", wanted)
        if chosen and not any(chosen.items() <= some.items() for some in labels):
            found.append(f"no pod has {chosen}")
        targets = [port["targetPort"] for port in manifest["spec"].get("ports", [])]
        found += [f"no port {target}" for target in targets if target not in ports]
    for _, pod in pods(all_of):
        volumes = {volume["name"] for volume in pod["spec"].get("volumes", [])}
        for one in pod["spec"]["containers"]:
            mounted = {mount["name"] for mount in one.get("volumeMounts", [])}
            found += [f"no volume {name}" for name in sorted(mounted - volumes)]
            own = {port["name"] for port in one.get("ports", [])}
            probes = [one[field]["httpGet"]["port"] for field in one if field.endswith("Probe")]
            found += [f"no port {port}" for port in probes if port not in own]
    return found


SERVER = "0.spec.template.spec.containers.0"


class TestKubernetes:
    @pytest.mark.parametrize("version", VERSIONS)
    def test_accepts_every_manifest(self, version: str) -> None:
        assert [why for manifest in manifests() for why in refused(manifest, version)] == []
        assert dangling(manifests()) == []

    @pytest.mark.parametrize(
        ("place", "value"),
        [
            ("0.apiVersion", "apps/v2"),
            ("0.spec.replicas", "two"),
            ("0.spec.selector", REMOVED),
            ("1.spec.ports.0.port", "http"),
            (f"{SERVER}.arguments", ["serve"]),
            (f"{SERVER}.livenessProbe.period", 10),
            (f"{SERVER}.securityContext.readOnlyRootFilesystem", "yes"),
            (f"{SERVER}.env.0.name", REMOVED),
        ],
    )
    def test_a_manifest_that_it_would_refuse_is_found(self, place: str, value: object) -> None:
        changed = spoilt(manifests(), place, value)
        assert [why for manifest in changed for why in refused(manifest, VERSIONS[-1])] != []

    @pytest.mark.parametrize(
        ("place", "value"),
        [
            ("1.spec.selector.app", "towpath"),
            ("1.spec.ports.0.targetPort", "web"),
            ("2.spec.selector.matchLabels.app", "server"),
            (f"{SERVER}.volumeMounts.0.name", "data"),
            (f"{SERVER}.readinessProbe.httpGet.port", "metrics"),
        ],
    )
    def test_a_name_that_refers_to_nothing_is_found(self, place: str, value: object) -> None:
        assert len(dangling(spoilt(manifests(), place, value))) == 1


# ── compose ──────────────────────────────────────────────────────────────────────────────


def composed() -> Any:
    return yaml.safe_load((DEPLOY / "compose.yml").read_text())


def unfit(told: Any) -> list[str]:
    """What the specification of compose does not allow, and names that refer to nothing."""
    place = files("check_jsonschema") / "builtin_schemas" / "vendor" / "compose-spec.json"
    schema = json.loads(place.read_text())
    assert schema["$schema"] == Draft202012Validator.META_SCHEMA["$id"]
    errors = Draft202012Validator(schema).iter_errors(told)  # pyright: ignore[reportUnknownMemberType] -- has no types
    found = [str(error.message) for error in errors]
    services: dict[str, Any] = told["services"]
    for name, service in services.items():
        found += [f"{name}: no service {needed}" for needed in service.get("depends_on", {})
                  if needed not in services]  # fmt: skip
        volumes = [str(volume).partition(":")[0] for volume in service.get("volumes", [])]
        found += [
            f"{name}: no volume {volume}" for volume in volumes if volume not in told["volumes"]
        ]
        if build := service.get("build"):
            context = DEPLOY / build["context"]
            found += [] if (context / build["dockerfile"]).is_file() else [f"{name}: no Dockerfile"]
        for before, on in service.get("depends_on", {}).items():
            checked = "healthcheck" in services.get(before, {})
            found += [] if checked or "healthy" not in on["condition"] else [f"{before}: no check"]
    return found


class TestCompose:
    def test_allows_the_file(self) -> None:
        assert unfit(composed()) == []

    @pytest.mark.parametrize(
        ("place", "value"),
        [
            ("service", {}),
            ("services.server.port", ["8080:8080"]),
            ("services.server.command", 8080),
            ("services.server.restart", False),
            ("services.valkey.healthcheck.every", "2s"),
            ("services.server.depends_on.valkey.condition", "up"),
            ("services.valkey.volumes.0", "data:/data"),
            ("services.server.build.dockerfile", "Dockerfile"),
            ("services.postgres", REMOVED),
            ("services.postgres.healthcheck", REMOVED),
        ],
    )
    def test_a_file_that_it_does_not_allow_is_found(self, place: str, value: object) -> None:
        assert unfit(spoilt(composed(), place, value)) != []


# ── systemd ──────────────────────────────────────────────────────────────────────────────

UNITS = ("towpath-server.service", "towpath-worker@.service")


def misread(name: str, text: str, folder: Path) -> list[str]:
    """What systemd reports about a unit; the program that the unit starts need not exist here."""
    here = folder / name.replace("@.", "@1.")
    here.write_text(text.replace("/srv/shop/.venv/bin/towpath", sys.executable))
    told = subprocess.run(
        ["systemd-analyze", "verify", str(here)], capture_output=True, text=True, check=False,
        env={**os.environ, "SYSTEMD_LOG_LEVEL": "warning"}, timeout=HANGS,
    )  # fmt: skip
    return [line for line in told.stderr.splitlines() if name.partition(".")[0] in line]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd here")
class TestSystemd:
    @pytest.mark.parametrize("name", UNITS)
    def test_understands_the_units(self, name: str, tmp_path: Path) -> None:
        assert misread(name, (DEPLOY / name).read_text(), tmp_path) == []

    @pytest.mark.parametrize(
        ("line", "planted"),
        [
            ("Restart=always", "Restart=every time"),
            ("RestartSec=2", "RestartPause=2"),
            ("TimeoutStopSec=20", "TimeoutStopSec=twenty"),
            ("ExecStart=/", "ExecStart="),
            ("[Install]", "[Installed]"),
        ],
    )
    def test_a_unit_that_it_does_not_understand_is_found(
        self, line: str, planted: str, tmp_path: Path
    ) -> None:
        text = (DEPLOY / UNITS[0]).read_text()
        assert line in text
        assert misread(UNITS[0], text.replace(line, planted), tmp_path) != []


# ── the Dockerfile ───────────────────────────────────────────────────────────────────────


def linted(text: str) -> list[str]:
    """What hadolint reports, including ShellCheck for commands."""
    program = Path(sysconfig.get_path("scripts")) / "hadolint"
    told = subprocess.run(
        [program, "--no-color", "--format", "json", "-"],
        input=text, capture_output=True, text=True, check=False, timeout=HANGS,
    )  # fmt: skip
    return [f"{finding['code']} {finding['message']}" for finding in json.loads(told.stdout)]


def missing(text: str) -> list[str]:
    """What is copied or started and does not exist: files, stages, commands."""
    stages = set(re.findall(r"^FROM \S+ AS (\S+)$", text, re.MULTILINE))
    named = re.findall(r"^COPY --from=(\S+)", text, re.MULTILINE)
    copied = re.findall(r"^COPY (?!--from)(?:--\S+ )*(.+) \S+$", text, re.MULTILINE)
    found = [f"no stage {stage}" for stage in named if stage not in stages]
    found += [f"no file {source}" for line in copied for source in line.split()
              if not (ROOT / source).exists()]  # fmt: skip
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    [[command, *_]] = map(json.loads, re.findall(r"^ENTRYPOINT (\[.*\])$", text, re.MULTILINE))
    return found + ([] if command in scripts else [f"no command {command}"])


def dockerfile() -> str:
    return (DEPLOY / "Dockerfile").read_text()


class TestTheDockerfile:
    def test_passes_the_linter(self) -> None:
        assert linted(dockerfile()) == []

    @pytest.mark.parametrize(
        ("line", "planted", "rule"),
        [
            ("FROM python:3.13-slim\n", "FROM python\n", "DL3006"),
            ("WORKDIR /app", "WORKDIR app", "DL3000"),
            ('CMD ["serve", "--host", "0.0.0.0"]', "CMD serve --host 0.0.0.0", "DL3025"),
            ("EXPOSE 8080", "EXPOSE 80800", "DL3011"),
            ("/opt/towpath/bin/pip install --no-cache-dir", "pip install", "DL3042"),
            ("COPY --from=build", "COPY --from=built", "DL3022"),
            ("RUN useradd", "RUN cd /tmp && useradd", "DL3003"),
            ("USER 10001", "USERS 10001", "DL1000"),
        ],
    )
    def test_with_a_fault_is_reported(self, line: str, planted: str, rule: str) -> None:
        assert line in dockerfile()
        assert rule in [
            finding.split()[0] for finding in linted(dockerfile().replace(line, planted))
        ]

    def test_copies_and_starts_only_what_exists(self) -> None:
        assert missing(dockerfile()) == []
        assert missing(dockerfile().replace("COPY . ", "COPY sources ")) == ["no file sources"]
        assert missing(dockerfile().replace("--from=build", "--from=x")) == ["no stage x"]
        assert missing(dockerfile().replace('["towpath"]', '["tow"]')) == ["no command tow"]

    def test_excludes_files_outside_of_the_repository(self) -> None:
        """The virtual environment alone would be 950 MB to send, and a `towpath-data` has keys in
        it.
        """
        lines = (ROOT / ".dockerignore").read_text().splitlines()
        left_out = {line.removeprefix("**/") for line in lines}
        ignored = {line.rstrip("/") for line in (ROOT / ".gitignore").read_text().split()}
        assert {".git", *ignored} - left_out == set()
