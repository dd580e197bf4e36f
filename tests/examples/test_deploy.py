"""The files of `examples/deploy`: the names in them exist, and they stop processes in an orderly
way.
"""

import json
import re
import tomllib
from collections.abc import Iterator
from configparser import ConfigParser
from pathlib import Path
from typing import Any

import promql_parser
import pytest
import yaml

from tests.examples.test_commands import Line, refusal
from towpath.apps.application import applications
from towpath.cli.config import groups
from towpath.clock import duration
from towpath.settings import Core, leaves
from towpath.telemetry import measures
from towpath.telemetry.measures import MetricSpec
from towpath.worker.options import WorkerOptions

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "examples" / "deploy"
OPERATING = ("deploy-*", "use-*", "send-events-*", "monitor", "upgrade", "run-workers")
HOW_TO = [page for name in OPERATING for page in sorted((ROOT / "docs/how-to").glob(f"{name}.md"))]
DASHBOARD, RULES = DEPLOY / "grafana-dashboard.json", DEPLOY / "prometheus-rules.yml"
EVERYWHERE = {"le", "instance", "job"}
"""Labels that Prometheus adds."""
METRIC = re.compile(r"\b(?:towpath|repository)_[a-z0-9_]+\b")


def specs() -> dict[str, MetricSpec]:
    known = (*measures.CATALOGUE, *(own for app in applications() for own in app.metrics))
    named: dict[str, MetricSpec] = {}
    for metric in known:
        ends = ("_bucket", "_sum", "_count") if metric.kind == "histogram" else ("",)
        named |= {f"{metric.name}{end}": metric for end in ends}
    return named


def alerts() -> list[dict[str, Any]]:
    told = yaml.safe_load(RULES.read_text())
    return [rule for group in told["groups"] for rule in group["rules"]]


def panels() -> list[dict[str, Any]]:
    return [
        panel for panel in json.loads(DASHBOARD.read_text())["panels"] if panel["type"] != "row"
    ]


def expressions() -> list[Any]:
    drawn = [
        (f"{panel['title']} {target['refId']}", target["expr"])
        for panel in panels()
        for target in panel["targets"]
    ]
    return [
        pytest.param(text, id=name)
        for name, text in [*((alert["alert"], alert["expr"]) for alert in alerts()), *drawn]
    ]


def refused(text: str) -> list[str]:
    """What is wrong with an expression: syntax, or unknown metrics and labels."""
    plain = text.replace("$__rate_interval", "5m").replace("$queue", ".*")
    try:
        promql_parser.parse(plain)
    except ValueError as error:
        return [str(error)]
    known = specs()
    names = METRIC.findall(plain)
    labels = {label for name in names if name in known for label in known[name].labels}
    grouped = re.findall(r"\b(?:by|on|without)\s*\(([^)]*)\)", plain)
    asked = {label.strip() for group in grouped for label in group.split(",")}
    asked |= set(re.findall(r"[{,]\s*(\w+)\s*=~?", plain))
    wrong = [name for name in names if name not in known]
    return wrong + sorted(asked - labels - EVERYWHERE) if names else ["names no metric of ours"]


class TestMonitoring:
    @pytest.mark.parametrize("text", expressions())
    def test_an_expression_uses_metrics_and_labels_that_exist(self, text: str) -> None:
        assert refused(text) == []

    @pytest.mark.parametrize(
        ("text", "wrong"),
        [
            ("towpath_gone_total > 0", "towpath_gone_total"),
            ("sum by (user) (towpath_queue_depth)", "user"),
            ('towpath_queue_depth{lane="a"}', "lane"),
            ("towpath_job_seconds > 1", "towpath_job_seconds"),
        ],
    )
    def test_an_expression_with_an_unknown_metric_is_found(self, text: str, wrong: str) -> None:
        assert refused(text) == [wrong]

    def test_an_expression_that_is_no_promql_is_found(self) -> None:
        assert refused("sum by queue (towpath_queue_depth)")

    def test_every_metric_of_the_engine_is_shown_or_alerted_on(self) -> None:
        seen = set(METRIC.findall(DASHBOARD.read_text() + RULES.read_text()))
        known = {spec.name for name, spec in specs().items() if name in seen}
        ours = {metric.name for metric in measures.CATALOGUE}
        assert ours - known == set()

    def test_an_alert_says_what_happened_and_what_to_do(self) -> None:
        for alert in alerts():
            assert set(alert["annotations"]) == {"summary", "do"}, alert["alert"]
            assert alert["labels"]["severity"] in ("warning", "critical")
        names = [alert["alert"] for alert in alerts()]
        assert len(names) == len(set(names)) > 8
        page = (ROOT / "docs" / "how-to" / "monitor.md").read_text()
        assert set(re.findall(r"`(Towpath\w+)`", page)) <= set(names)

    def test_panels_do_not_overlap(self) -> None:
        taken: set[tuple[int, int]] = set()
        for panel in panels():
            at = panel["gridPos"]
            cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
            assert not cells & taken, panel["title"]
            assert at["x"] + at["w"] <= 24
            taken |= cells


def unit(name: str) -> ConfigParser:
    read = ConfigParser(strict=False, interpolation=None)
    read.optionxform = str  # pyright: ignore[reportAttributeAccessIssue] -- as its page says
    read.read(DEPLOY / name)
    return read


def manifests() -> list[dict[str, Any]]:
    return [
        manifest
        for manifest in yaml.safe_load_all((DEPLOY / "kubernetes.yml").read_text())
        if manifest
    ]


def containers() -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Pods and their containers."""
    for manifest in manifests():
        if "template" in manifest.get("spec", {}):
            pod = manifest["spec"]["template"]["spec"]
            yield from ((pod, container) for container in pod["containers"])


def commands() -> dict[str, list[str]]:
    """The words after `towpath`, by where they are."""
    found = {
        name: unit(name)["Service"]["ExecStart"].split()[1:]
        for name in ("towpath-server.service", "towpath-worker@.service")
    }
    found |= {f"kubernetes {one['name']}": one["args"] for _, one in containers()}
    services = yaml.safe_load((DEPLOY / "compose.yml").read_text())["services"]
    found |= {
        f"compose {service}": services[service]["command"] for service in ("server", "worker")
    }
    [words] = re.findall(r"^CMD (\[.*\])$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    return found | {"Dockerfile": json.loads(words)}


@pytest.mark.parametrize("where", commands())
def test_a_command_is_valid(where: str) -> None:
    words = [word.replace("%H", "host").replace("%i", "1") for word in commands()[where]]
    assert refusal(Line(tuple(words), is_mention=False)) is None


@pytest.mark.parametrize("path", [*HOW_TO, *sorted(DEPLOY.iterdir())], ids=lambda path: path.name)
def test_a_variable_belongs_to_a_setting(path: Path) -> None:
    known: set[str] = set()
    for leaf in leaves(groups(Core())):
        known |= {*leaf.variables, *(f"{name}_FILE" for name in leaf.variables)}
    named = set(re.findall(r"\bTOWPATH_[A-Z][A-Z0-9_]*\b(?!…)", path.read_text()))
    assert named - known == set()


def test_pods_and_units_wait_longer_than_what_they_stop() -> None:
    grace = WorkerOptions().grace.total_seconds()
    told = unit("towpath-worker@.service")["Service"]
    assert f"--grace {grace:g}s" in told["ExecStart"]
    assert int(told["TimeoutStopSec"]) > grace
    services = yaml.safe_load((DEPLOY / "compose.yml").read_text())["services"]
    assert duration("stop", services["worker"]["stop_grace_period"]).total_seconds() > grace
    stopping = {one["name"]: pod["terminationGracePeriodSeconds"] for pod, one in containers()
                if "terminationGracePeriodSeconds" in pod}  # fmt: skip
    assert stopping["worker"] > grace
    assert stopping["server"] > 10 + 5


def test_probes_use_paths_that_need_no_key() -> None:
    asked = {
        one[probe]["httpGet"]["path"]
        for _, one in containers()
        for probe in ("livenessProbe", "readinessProbe")
        if probe in one
    }
    assert asked == {"/livez", "/readyz", "/metrics"}  # the last of a worker, whose port has no key


def test_the_image_is_built_with_extras_that_exist() -> None:
    text = (DEPLOY / "Dockerfile").read_text()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [named] = re.findall(r"/src\[([\w,]+)\]", text)
    assert set(named.split(",")) <= set(extras["optional-dependencies"])
    versions = re.findall(r"FROM python:3\.(\d+)", text)
    assert all(int(version) >= 11 for version in versions)
    assert 'ENTRYPOINT ["towpath"]' in text
