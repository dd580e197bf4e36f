"""Pages of another origin that upload with a credential: the code of the how-to, in Chromium."""

import json
import random
import re
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page

from tests.architecture.sources import ROOT as PROJECT
from tests.dashboard.browsing import PATIENCE_MS
from tests.server.serving import RunningServer, up
from tests.waiting import eventually

NPM = PROJECT / ".venv" / "npm" / "node_modules"
HOWTO = PROJECT / "docs" / "how-to" / "upload-files.md"
API = "/api/v1/uploads"
MIB = 1024 * 1024
DATA = random.Random(7).randbytes(5 * MIB + 7)
IMPORTS = {
    "@uppy/core": "@uppy/core/lib/index.js",
    "@uppy/core/utils": "@uppy/core/lib/utils/index.js",
    "@uppy/tus": "@uppy/tus/lib/index.js",
    "@transloadit/prettier-bytes": "@transloadit/prettier-bytes/dist/prettierBytes.js",
    "tus-js-client": "tus-js-client/lib.esm/browser/index.js",
    "js-base64": "js-base64/base64.mjs",
    "url-parse": "url-parse/index.js",
    "requires-port": "requires-port/index.js",
    "querystringify": "querystringify/index.js",
    "lodash/throttle.js": "lodash/throttle.js",
    "namespace-emitter": "namespace-emitter/index.js",
    "mime-match": "mime-match/index.js",
    "wildcard": "wildcard/index.js",
    "nanoid/non-secure": "nanoid/non-secure/index.js",
    "classnames": "classnames/index.js",
    "lodash/debounce.js": "lodash/debounce.js",
    "preact": "preact/dist/preact.mjs",
    "preact/hooks": "preact/hooks/dist/hooks.mjs",
    "preact/compat": "preact/compat/dist/compat.mjs",
    "preact/jsx-runtime": "preact/jsx-runtime/dist/jsxRuntime.mjs",
    "p-queue": "p-queue/dist/index.js",
    "p-retry": "p-retry/index.js",
    "p-timeout": "p-timeout/index.js",
    "is-network-error": "is-network-error/index.js",
    "eventemitter3": "eventemitter3/index.mjs",
}
"""Where the modules are that the page imports by name, as a bundler would find them."""
COMMON_JS = ("url-parse", "requires-port", "querystringify", "lodash", "namespace-emitter",
             "mime-match", "wildcard", "classnames")  # fmt: skip
PAGE = """<!doctype html><title>A page</title><link rel="icon" href="data:,"><input type="file">
<script type="importmap">{imports}</script>
<script type="module">
import {{ send }} from "/howto-0.js";
import {{ uppy }} from "/howto-1.js";
const chosen = () => document.querySelector("input").files[0];
const asked = [];
const noted = {{
  chunkSize: 1 << 20,
  onBeforeRequest: (r) => {{ asked.push([r.getMethod(), r.getHeader("Upload-Offset") ?? null]); }},
}};
/* Both send the file; with `stop`, it is interrupted after its first chunk. */
window.withTus = (stop) => new Promise((resolve, reject) => {{
  const begun = send(chosen(), {{
    ...noted,
    onChunkComplete: () => stop && begun.then((it) => it.abort()).then(() => resolve(asked)),
    onSuccess: () => resolve(asked),
    onError: reject,
  }});
  begun.catch(reject);
}});
window.withUppy = (stop) => new Promise((resolve, reject) => {{
  const onChunkComplete = () => {{
    if (stop) {{ uppy[stop](); resolve(asked); }}
  }};
  uppy.getPlugin("Tus").setOptions({{ ...noted, onChunkComplete }});
  uppy.on("complete", (result) => result.failed.length || stop || resolve(asked));
  uppy.on("upload-error", (file, error) => reject(error));
  uppy.addFile({{ name: chosen().name, type: chosen().type, data: chosen() }});
  uppy.upload().catch(reject);
}});
window.ready = true;
</script>"""


def howto(language: str) -> list[str]:
    """The blocks of that language in the section about web pages."""
    section = HOWTO.read_text().partition("## From a web page")[2].partition("\n## ")[0]
    return re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)


def as_module(path: Path) -> str:
    """A CommonJS file as a module that browsers can import."""
    source = path.read_text()
    names = list(dict.fromkeys(re.findall(r"""require\(['"]([^'"]+)['"]\)""", source)))
    found = {name: f"{name}.js" if name.startswith(".") else name for name in names}
    imports = "".join(
        f"import _{at} from {json.dumps(found[name])};\n" for at, name in enumerate(names)
    )
    table = ", ".join(f"{json.dumps(name)}: _{at}" for at, name in enumerate(names))
    return (
        f"{imports}const module = {{ exports: {{}} }}; let exports = module.exports;\n"
        f"const global = globalThis; const require = (name) => ({{ {table} }})[name];\n"
        f"(function () {{\n{source}\n}}).call(globalThis);\nexport default module.exports;\n"
    )


class Site:
    """The application that uses Towpath: a page and its backend, on an origin of its own."""

    def __init__(self) -> None:
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                kind, body = site.file(self.path)
                self.answer(kind, body)

            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self.answer("application/json", json.dumps(site.begin(asked)))

            def answer(self, kind: str, body: str) -> None:
                data = body.encode()
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.origin = f"http://127.0.0.1:{self._server.server_port}"
        self.towpath = ""
        self.issued: list[dict[str, Any]] = []
        self._begin: Any = None

    @contextmanager
    def using(self, address: str, key: str) -> Generator[None]:
        """Runs the backend of the how-to with a key for the server at *address*."""
        self.towpath = address
        [code] = howto("py")
        code = code.replace("https://files.example", address)
        names: dict[str, Any] = {"key": key}
        exec(code.replace("https://app.example", self.origin), names)  # noqa: S102 -- the how-to's
        self._begin = names["begin_upload"]
        with names["towpath"]:
            yield

    def begin(self, file: dict[str, Any]) -> dict[str, Any]:
        self.issued.append(self._begin("ann", file))
        return self.issued[-1]

    def file(self, path: str) -> tuple[str, str]:
        if path == "/":
            urls = {name: f"/npm/{place}" for name, place in IMPORTS.items()}
            return "text/html", PAGE.format(imports=json.dumps({"imports": urls}))
        if match := re.fullmatch(r"/howto-(\d)\.js", path):
            code = howto("js")[int(match[1])].replace("https://files.example", self.towpath)
            shared = 'import { begin } from "/howto-0.js";\n' if match[1] == "1" else ""
            return "text/javascript", shared + code
        place = NPM / path.removeprefix("/npm/")
        if place.suffix == ".json":
            return "application/json", place.read_text()
        if place.relative_to(NPM).parts[0] in COMMON_JS:
            return "text/javascript", as_module(place)
        return "text/javascript", place.read_text()

    @contextmanager
    def running(self) -> Generator["Site"]:
        thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    if not (NPM / "@uppy").exists():
        pytest.skip("Uppy is not here: `make .venv/npm` brings it")
    with Site().running() as site:
        yield site


@pytest.fixture(scope="module")
def files(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    home = tmp_path_factory.mktemp("page-uploads")
    with up(home, TOWPATH_UPLOADS__ORIGINS=site.origin, TOWPATH_LOG__LEVEL="debug") as served:
        yield served


@pytest.fixture
def backend(site: Site, files: RunningServer) -> Iterator[httpx.Client]:
    wish = {"name": "backend", "scopes": ["submit", "read"], "queues": ["uploads"]}
    made = files.client().post("/api/v1/keys", json=wish)
    assert made.status_code == 201, made.text
    key = made.json()["secret"]
    with site.using(files.address, key):
        yield files.client(key)


class Visit:
    """A user who opened the page and chose a file."""

    def __init__(self, page: Page, site: Site, name: str) -> None:
        self._page, self._site, self._name = page, site, name
        self.urls: list[str] = []
        self.complaints: list[str] = []
        page.on("request", lambda request: self.urls.append(request.url))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def run(self, call: str) -> Any:
        self._page.goto(self._site.origin)
        self._page.wait_for_function("window.ready")
        chosen: Any = {"name": self._name, "mimeType": "application/x-test", "buffer": DATA}
        self._page.set_input_files("input", chosen)
        return self._page.evaluate(call)

    def stored(self) -> str:
        return self._page.evaluate("JSON.stringify([localStorage, sessionStorage])")


@pytest.fixture
def visit(
    site: Site, browser: Browser, backend: httpx.Client, request: pytest.FixtureRequest
) -> Iterator[Visit]:
    assert backend
    context = browser.new_context()
    context.set_default_timeout(PATIENCE_MS)
    yield Visit(context.new_page(), site, f"{request.node.name}.bin")
    context.close()


def status_of(backend: httpx.Client, id: str) -> str:
    return backend.get(f"{API}/{id}").json()["status"]


class TestAPage:
    @pytest.mark.parametrize(
        "calls",
        [("withTus(true)", "withTus(false)"), ("withUppy('pauseAll')", "withUppy('')")],
        ids=["tus-js-client", "uppy"],
    )
    def test_uploads_a_file_although_it_is_interrupted(
        self, visit: Visit, site: Site, backend: httpx.Client, files: RunningServer,
        *, calls: tuple[str, str],
    ) -> None:  # fmt: skip
        interrupted, resumed = calls
        first = visit.run(interrupted)
        assert first[0][0] == "HEAD"
        assert first[1] == ["PATCH", "0"]
        id = site.issued[-1]["upload_id"]
        assert status_of(backend, id) in ("PENDING", "UPLOADING")
        again = visit.run(resumed)  # in a page that was opened anew
        assert again[0][0] == "HEAD"
        assert [method for method, _ in again[1:]] == ["PATCH"] * len(again[1:])
        assert int(again[1][1]) >= MIB
        assert site.issued[-1]["upload_id"] == id
        eventually(lambda: status_of(backend, id) == "COMPLETED")
        assert backend.get(f"{API}/{id}/content").content == DATA
        assert visit.complaints == []
        for issued in site.issued:
            token = issued["credential"]
            assert token not in files.log.read_text()
            assert token.partition(".")[2] not in files.log.read_text()
            assert not [url for url in visit.urls if token in url]
            assert token not in visit.stored()

    def test_cancels_its_upload(self, visit: Visit, site: Site, backend: httpx.Client) -> None:
        visit.run("withUppy('cancelAll')")
        eventually(lambda: status_of(backend, site.issued[-1]["upload_id"]) == "ABORTED")
        assert visit.complaints == []

    def test_of_another_origin_cannot_use_the_credential(
        self, visit: Visit, site: Site, backend: httpx.Client, browser: Browser
    ) -> None:
        visit.run("withTus(true)")
        issued = site.issued[-1]
        with Site().running() as other:
            other.towpath = site.towpath
            context = browser.new_context()
            page = context.new_page()
            page.goto(other.origin)
            asked = f"""fetch("{site.towpath}{issued["url"]}", {{method: "HEAD", headers: {{
                "Authorization": "Bearer {issued["credential"]}", "Tus-Resumable": "1.0.0"}}}})
                .then((answer) => answer.status, () => "refused by the browser")"""
            assert page.evaluate(asked) == "refused by the browser"
            context.close()
        assert status_of(backend, issued["upload_id"]) in ("PENDING", "UPLOADING")
