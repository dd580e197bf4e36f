"""An application of another project is mounted by a setting alone; an invalid one is refused."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.apps.reviews.deliveries import GITHUB_SECRET, hub_signature, pull_request
from tests.architecture.sources import ROOT
from tests.server.in_process import started
from tests.server.messaging import app_on
from tests.server.serving import RunningServer, problem, up
from tests.waiting import eventually, eventually_async
from towpath.apps.application import applications
from towpath.embedded import EmbeddedServer
from towpath.ledger.ledger import Ledger

GREETINGS = "tests.applications.greetings:APPLICATION"
NAMED = {"TOWPATH_APPLICATIONS": GREETINGS, "PYTHONPATH": str(ROOT)}
SECRET = "greetings-secret"  # noqa: S105 -- of this test


@pytest.fixture(scope="module")
def greeting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """`towpath up` with the application, which takes webhooks; so do reviews."""
    secrets = {
        "TOWPATH_GREETINGS__GITHUB_SECRETS": f"{SECRET},{GITHUB_SECRET}",
        "TOWPATH_GREETINGS__WORD": "hi",
        "TOWPATH_REVIEWS__GITHUB_SECRETS": GITHUB_SECRET,
    }
    with up(tmp_path_factory.mktemp("up"), **NAMED, **secrets) as serving:
        yield serving


def signed(body: bytes, secret: str) -> dict[str, str]:
    return {"X-Hub-Signature-256": hub_signature(secret, body)}


class TestAMountedApplication:
    def test_answers_over_http_and_its_handlers_run(self, greeting: RunningServer) -> None:
        client = greeting.client()
        assert client.post("/api/v1/greetings/ann").json() == {"job": "ann"}

        def job() -> Any:
            return client.get("/api/v1/queues/greetings/jobs/ann").json()

        eventually(lambda: job()["state"] == "done")
        assert job()["result"] == "hi ann"

    def test_needs_a_key_except_for_its_open_paths(self, greeting: RunningServer) -> None:
        nobody = greeting.client("")
        problem(nobody.post("/api/v1/greetings/ann"), 401)
        assert nobody.get("/api/v1/greetings").json() == {"job": "hi"}

    def test_allows_only_the_raw_calls_that_it_publishes(self, greeting: RunningServer) -> None:
        _, secret = greeting.make_key("submit", "work", queues=("greetings",))
        api = greeting.api("greetings", secret)
        api.submit("eve", id="eve")
        problem(api.post("/jobs/eve/cancel"), 403)
        problem(api.post("/claim", {"worker": "w"}), 403)

    def test_decides_the_status_of_its_errors(self, greeting: RunningServer) -> None:
        refused = problem(greeting.client().post("/api/v1/greetings/nobody"), 404)
        assert refused["type"].endswith("/nobody-there")

    def test_has_its_paths_in_the_description_of_the_api(self, greeting: RunningServer) -> None:
        page = greeting.client().get("/openapi.json").json()
        assert {"name": "greetings", "description": "Greet people."} in page["tags"]
        assert page["paths"]["/api/v1/greetings"]["get"]["security"] == []
        assert page["paths"]["/api/v1/greetings/{name}"]["post"]["security"]
        hook = page["paths"]["/api/v1/webhooks/greetings/hello"]["post"]
        assert hook["security"] == [{"greetings-hello": []}]
        assert "greetings-hello" in page["components"]["securitySchemes"]

    def test_has_its_metrics_and_its_readiness_check(self, greeting: RunningServer) -> None:
        client = greeting.client()
        assert "towpath_greetings_greeted_total " in client.get("/metrics").text
        assert client.get("/readyz").json()["parts"]["greetings"] == {"ok": True}

    def test_writes_its_own_log_events(self, greeting: RunningServer) -> None:
        greeting.client().post("/api/v1/greetings/flo")
        [line] = [line for line in greeting.events() if line.get("person") == "flo"]
        assert (line["event"], line["job"]) == ("greeting.asked", "flo")

    async def test_has_tasks_that_run_beside_the_requests(
        self, server: EmbeddedServer, ledger: Ledger
    ) -> None:
        async with started(app_on(server.url, ledger, applications([GREETINGS]))) as app:

            async def looked() -> bool:
                return app.state.services["greetings"].looks == 1

            await eventually_async(looked)


class TestAWebhook:
    def test_below_the_name_of_an_application_is_the_applications_own(
        self, greeting: RunningServer
    ) -> None:
        body = json.dumps({"sender": {"login": "bob"}}).encode()
        path, nobody = "/api/v1/webhooks/greetings/hello", greeting.client("")
        answer = nobody.post(path, content=body, headers=signed(body, SECRET))
        assert (answer.status_code, answer.json()) == (202, {"job": "bob"})
        problem(nobody.post(path, content=body, headers=signed(body, "wrong")), 401)

    def test_of_a_forge_reaches_each_application_whose_secret_fits(
        self, greeting: RunningServer
    ) -> None:
        nobody, path = greeting.client(""), "/api/v1/webhooks/github"
        delivery = pull_request()
        both = nobody.post(path, content=delivery.body, headers=delivery.headers)
        assert both.status_code == 202
        assert set(both.json()) == {"greetings", "reviews"}
        assert both.json()["reviews"]["state"] == "PENDING"
        assert both.json()["greetings"] == {"job": json.loads(delivery.body)["sender"]["login"]}

        headers = {**delivery.headers, **signed(delivery.body, SECRET)}
        one = nobody.post(path, content=delivery.body, headers=headers)
        assert set(one.json()) == {"greetings"}
        headers = {**delivery.headers, **signed(delivery.body, "wrong")}
        problem(nobody.post(path, content=delivery.body, headers=headers), 401)

    def test_that_one_application_refuses_has_reached_the_others(
        self, greeting: RunningServer
    ) -> None:
        """The forge is told of the failure and sends it again; that is harmless to the others."""
        other = {"number": 4711, "pull_request.number": 4711}
        delivery = pull_request({"sender.login": "nobody", **other})
        headers = {**delivery.headers, "X-GitHub-Delivery": "refused-by-one"}
        path = "/api/v1/webhooks/github"
        answer = greeting.client("").post(path, content=delivery.body, headers=headers)
        assert problem(answer, 404)["type"].endswith("/nobody-there")
        assert greeting.client().get("/api/v1/reviews/github-refused-by-one").status_code == 200
