"""Redis as the engine sees it: scripts by name, and the options of queues."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from towpath.clock import Clock, Duration, ServerClock, duration_ms, steady
from towpath.engine.calls import Calls, Prepare
from towpath.engine.channel import Limits
from towpath.engine.cluster import Cluster
from towpath.engine.codec import pack
from towpath.engine.connection import Place
from towpath.engine.durability import Durability, ServerFacts
from towpath.engine.history import QUEUES_MOST
from towpath.engine.keys import REGISTRY, DeclaredKeys, keys_of
from towpath.engine.model import Call, NewJob
from towpath.engine.options import (
    DEFAULTS,
    KNOWN,
    LAYOUT,
    LAYOUT_MARK,
    SCRIPTED,
    Declared,
    QueueOptions,
    StoredOptions,
    differences,
    layout_of,
    new_version,
    version_of,
)
from towpath.engine.outages import Outages
from towpath.engine.port import Running
from towpath.engine.refusals import QueueChanged, QueueUnknown
from towpath.engine.resp import ScriptUnknown
from towpath.engine.script import Script, Scripts
from towpath.engine.server_time import ServerTimes
from towpath.engine.time_limit import Deadline
from towpath.errors import (
    InvalidName,
    InvalidOption,
    LayoutDiffers,
    OptionsUnstable,
    PayloadTooLarge,
    QueueDiffers,
    ScriptDefect,
    ServerError,
    ServerRefused,
    ServerUnreachable,
)
from towpath.ids import QueueName, queue_name
from towpath.supervise import detached
from towpath.telemetry.events import QUEUE_UNREADABLE
from towpath.telemetry.logs import Log

Body = Callable[[QueueOptions], Any]
"""Makes the arguments of a script from the queue's current options."""

Calling = Callable[[Script, DeclaredKeys, tuple[Any, ...], Call | None], Prepare[Any]]
"""How a writing script is called."""

Change = Callable[[QueueOptions], QueueOptions]
"""Returns new options in place of the queue's; may be called more than once."""

_NEW = StoredOptions(DEFAULTS, "")
_KNOWN = pack(dict.fromkeys(sorted(KNOWN), True))
_NO_VERSION = "none"
"""In place of a version: options are stored only if the queue has none."""
_CHANGES_MOST = 1000
"""How often a queue's options may change during one call before that is an error."""
_LISTING_SECONDS = 1.0
_AT_ONCE = 50
"""Maximum number of queues in one message: a server does nothing else until it has answered."""


class Store:
    """One deployment of Redis or Valkey, called by scripts."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        clock: Clock,
        limits: Limits,
        scripts: Scripts,
        declared: Durability | None,
        log: Log,
    ) -> None:
        self._scripts, self._place_of, self._port = scripts, cluster.owner, cluster.port
        self.calls = Calls(cluster, clock, limits, declared=declared, log=log)
        self.times = ServerTimes(goes_by_clock=isinstance(clock, ServerClock))
        self.outages = Outages(self.calls, self.times)
        self._listing: dict[QueueName, asyncio.Task[None]] = {}
        self._unlisted: dict[QueueName, float] = {}
        """Queues that a thread could not write to the list of queues -> when to try again."""
        self._log, self._unreadable = log, set[str]()
        self._in_force: dict[QueueName, StoredOptions] = {}
        self._introducing: Running[StoredOptions] = {}
        self._declarations: dict[QueueName, dict[str, Any]] = {}
        """The options that this engine has declared, to be declared again for a new queue."""
        self.introduced: dict[str, QueueOptions] = {}
        """The options that `introduce` returned, for its next calls."""

    @property
    def facts(self) -> ServerFacts:
        """What the Redis servers reported about themselves when they were last asked.

        Raises ServerUnreachable until one has answered.
        """
        if self.calls.facts is None:
            trouble = self.calls.trouble or ServerUnreachable("the server was not asked yet")
            raise trouble.with_traceback(None)
        return self.calls.facts

    async def check(self) -> ServerFacts:
        """What the Redis servers report about themselves now. Raises EvictionUnsafe,
        DurabilityUnknown, ServerRefused, ServerUnreachable.
        """
        return await self.calls.check()

    async def current_facts(self) -> ServerFacts:
        """What `check` returned at most a second ago."""
        return await self.calls.current_facts()

    async def connect(self, *, tolerant: bool) -> None:
        """Check the Redis servers when the engine is entered. Probes those that do not answer until
        they do. Unfit ones are probed too if *tolerant*; otherwise raises what `check` raises.
        """
        self.calls.open()
        try:
            await self.calls.check()
        except ServerError as error:
            if not tolerant and not isinstance(error, ServerUnreachable):
                raise
            self.calls.are_away(error)

    async def close(self) -> None:
        """Refuse all further calls."""
        await self.calls.close()
        listing = list(self._listing.values())
        for task in listing:
            task.cancel()
        if listing:
            await asyncio.gather(*listing, return_exceptions=True)

    # ── scripts ──────────────────────────────────────────────────────────────────────────

    async def write(
        self,
        verb: str,
        queue: QueueName,
        body: Body,
        call: Call | None = None,
        calling: Calling | None = None,
        *,
        deadline: Deadline | None = None,
        creates: bool = True,
    ) -> Any:
        """Run a script that writes, called as *calling* says, until *deadline*. Returns its answer.

        If Redis has no options of the queue, they are stored first. If it has others than this
        engine knew, the call is repeated with those. In both cases the refused call changed
        nothing. Without *creates*, a queue that Redis does not know raises QueueUnknown: a mistyped
        name must not create a queue.
        """
        script, keys, calls = self._scripts[verb], keys_of(queue), self.calls
        calling = calling or calls.plain
        for _ in range(_CHANGES_MOST):
            learning = queue in self._introducing
            known = None if learning else self._in_force.get(queue)
            if not (creates or learning or known or await self.exists(queue)):
                raise QueueUnknown(f"no queue {queue}")
            known = known or await self._learn_options_once(queue, _NEW)
            if self._unlisted and self._unlisted.get(queue, math.inf) <= steady():
                await self._list_queue_now(queue)
            try:
                args = _arguments(verb, body(known.options), known.version)
                prepare = calling(script, keys, args, call)
                return await calls.ask(keys.first, prepare, deadline=deadline)
            except (QueueUnknown, QueueChanged) as refused:
                if not creates and isinstance(refused, QueueUnknown):
                    raise
                await self._learn_options_once(queue, known)
            except PayloadTooLarge:
                # The known limit may be outdated; nothing was sent yet.
                if await self._restore_options(queue) == known:
                    raise
        raise OptionsUnstable(queue)

    async def write_confirmed(
        self,
        verb: str,
        queue: QueueName,
        body: Body,
        call: Call | None,
        *,
        durability: Durability,
        written: Callable[[], None],
        deadline: Deadline | None = None,
    ) -> Any:
        """As `write`, confirmed at *durability*; *written* is called before the confirmation.

        Raises DurabilityUnavailable, DurabilityNotReached.
        """
        await self.calls.require_replicas(durability)
        calling = partial(self.calls.confirmed, durability=durability, written=written)
        return await self.write(verb, queue, body, call, calling, deadline=deadline)

    async def read(self, verb: str, queue: QueueName, *args: Any) -> Any:
        """The answer of a script that only reads."""
        return await self.calls.clocked(self._scripts[verb], keys_of(queue), *args)

    async def read_in_turn(
        self, queue: QueueName, asked: Sequence[tuple[Any, ...]], *, within: float
    ) -> list[Any]:
        """The answers of several scripts that only read, in order; *asked* has a verb with its
        arguments for each. Raises ServerUnreachable after *within* seconds.
        """
        return await self.calls.clocked_in_turn(
            keys_of(queue),
            [(self._scripts[one[0]], one[1:]) for one in asked],
            self.calls.new_deadline(within),
        )

    async def read_each(self, verb: str, queues: Sequence[QueueName], *args: Any) -> list[Any]:
        """The answers of a script that only reads, for several queues: up to fifty of one server in
        one message. If Redis refuses to read the data of a queue, its answer is the error.
        """
        parts: dict[Place | None, list[QueueName]] = {}
        for queue in queues:
            parts.setdefault(self._place_of(keys_of(queue).first), []).append(queue)
        asked = [
            part[at : at + _AT_ONCE]
            for part in parts.values()
            for at in range(0, len(part), _AT_ONCE)
        ]
        answers: dict[QueueName, Any] = {}
        for some in asked:
            answers |= zip(some, await self._read_some(verb, some, args), strict=True)
        return [answers[queue] for queue in queues]

    async def _read_some(
        self, verb: str, queues: Sequence[QueueName], args: tuple[Any, ...]
    ) -> list[Any]:
        keys, script = [keys_of(queue) for queue in queues], self._scripts[verb]
        answers = await self.calls.clocked_each(script, keys, *args)
        if isinstance(answers[0], ScriptUnknown):
            with suppress(ServerRefused, ScriptDefect):
                await self.read(verb, queues[0], *args)  # NOSCRIPT: a single call loads the script
            answers = await self.calls.clocked_each(script, keys, *args)
        for at, answer in enumerate(answers):
            if isinstance(answer, Exception):  # alone, the call is redirected or refused
                try:
                    answers[at] = await self.read(verb, queues[at], *args)
                except (ServerRefused, ScriptDefect) as refusal:  # a key of a wrong type
                    answers[at] = refusal
        return answers

    async def plain(self, verb: str, queue: QueueName, *args: Any) -> Any:
        """The answer of a script that is safe to repeat and takes no clock."""
        return await self.calls.read(self._scripts[verb], keys_of(queue), *args)

    async def command(self, *command: Any) -> Any:
        """The answer of a plain command that is safe to repeat."""
        return await self.calls.command(*command)

    # ── queues ───────────────────────────────────────────────────────────────────────────

    async def known_options(self, queue: QueueName, *, within: float | None = None) -> QueueOptions:
        """The options of *queue* as last read: a caller's values are checked with them.

        A queue that does not exist has the defaults, and is not created.
        """
        known = self._in_force.get(queue)
        return known.options if known else await self.options(queue, within=within)

    def takes(self, queue: QueueName, jobs: list[NewJob]) -> bool:
        """Whether *jobs* are one job, whose payload fits the last known limit of *queue*."""
        known = self._in_force.get(queue)
        return (
            known is not None
            and len(jobs) == 1
            and len(jobs[0].payload) <= known.options.max_payload
        )

    async def largest_payload(self, queue: QueueName, size: int) -> int:
        """The limit of a payload in *queue*: as last read, and read again if *size* exceeds it."""
        known = self._in_force.get(queue)
        limit = (known.options if known else await self.options(queue)).max_payload
        return limit if size <= limit else (await self.options(queue)).max_payload

    async def options(self, queue: QueueName, *, within: float | None = None) -> QueueOptions:
        """The options of *queue* now; the defaults if it was never used. One round trip.

        Writes nothing, so that a caller who only reads creates no queue.
        """
        if (found := await self._read_options(queue, within)) is not None:
            if not found.declared and queue in self._declarations:
                return found.options  # the queue is new: the next call declares before it writes
            self._in_force[queue] = found
        # If Redis has lost the options, the next call restores them.
        known = self._in_force.get(queue)
        return known.options if known else QueueOptions()

    async def exists(self, queue: QueueName) -> bool:
        """Whether Redis has options of *queue*: every use of it stores some."""
        return await self._read_options(queue) is not None

    async def _read_options(
        self, queue: QueueName, within: float | None = None
    ) -> StoredOptions | None:
        """The stored options of *queue*; None if there are none. Raises ServerRefused."""
        fields = ("whole", "version", "declared", "options")
        stored, version, *more = await self.calls.command(
            "HMGET", keys_of(queue).meta, *fields, deadline=self.calls.new_deadline(within)
        )
        if version is None:
            return None
        return _parse_options(queue, stored or b"", version, *more)

    async def configure(self, queue: QueueName, wanted: QueueOptions) -> None:
        """Use *queue* with these options. Raises QueueDiffers if it has others."""
        in_force = await self._write_options(queue, StoredOptions.of(wanted), _NO_VERSION)
        if found := differences(in_force.options, wanted):
            raise QueueDiffers(queue, found)

    async def introduce(self, queue: QueueName, wanted: QueueOptions) -> QueueOptions:
        """Declare those options of *wanted* that differ from the defaults. Returns the queue's."""
        usual, given = (msgspec.structs.asdict(options) for options in (QueueOptions(), wanted))
        named = {name: value for name, value in given.items() if value != usual[name]}
        held = self.introduced[queue] = (await self.declare(queue, named)).now
        return held

    async def declare(self, queue: QueueName, wanted: Mapping[str, Any]) -> Declared:
        """Give *queue* these options, except those that were changed since they were last declared.
        They are declared again whenever this engine finds that the queue is new.
        """
        declared = await self._change(queue, lambda stored: stored.with_declared(wanted))
        self._declarations.setdefault(queue, {}).update(wanted)
        return declared

    async def reset(self, queue: QueueName, names: Collection[str]) -> Declared:
        """Give *queue* these options as they were declared last."""
        return await self._change(queue, lambda stored: stored.with_reset(names))

    async def declared(self, queue: QueueName) -> QueueOptions | None:
        """The declared options of *queue*, with defaults for the others; None if none ever was."""
        await self.options(queue)
        known = self._in_force.get(queue)
        return known.base if known and known.declared else None

    async def reconfigure(self, queue: QueueName, options: QueueOptions) -> None:
        """Give *queue* other options, for all its users and at once."""
        await self._change(queue, lambda stored: stored.with_options(options))

    async def delete(self, queue: QueueName, *, forced: bool = False) -> bool:
        """Delete an empty queue. Returns False if it is not empty."""
        return await self._delete(queue, int(forced), 0, "")

    async def delete_unused(self, queue: QueueName, unused_for: Duration) -> bool:
        """Delete an empty queue that was not used for that time. Returns False for any other queue,
        and if its options were changed after they were declared.
        """
        stored = await self._read_options(queue)
        if stored is not None and stored.is_changed:
            return False
        version = stored.version if stored else ""
        return await self._delete(queue, 0, duration_ms("unused_for", unused_for), version)

    async def _delete(self, queue: QueueName, *args: Any) -> bool:
        if await self.read("delete_queue", queue, *args) != b"deleted":
            return False
        self._in_force.pop(queue, None)
        self.introduced.pop(queue, None)
        self._unlisted.pop(queue, None)
        if (listing := self._listing.get(queue)) is not None:
            # Not cancelled: a command that it has sent might arrive after the removal.
            await asyncio.wait((listing,))
        await self.command("HDEL", REGISTRY, queue)
        await self.options(queue)
        if queue in self._in_force:  # it was used meanwhile
            await self._list_queue(queue)
        return True

    async def _learn_options(self, queue: QueueName, known: StoredOptions) -> StoredOptions:
        """Learn the options of a queue that has others than those *known*, or restore the known
        ones if Redis has lost them.

        A queue without declarations is new: it was deleted or lost, and created with the defaults
        by a process that may know no handler. Then the declarations of this engine are made again,
        before another call of this engine uses the defaults.
        """
        now = await self._store_options(queue, _without_version(known), _NO_VERSION)
        wanted = self._declarations.get(queue)
        if wanted and not now.declared:
            _, now = await self._replace(queue, now, lambda stored: stored.with_declared(wanted))
        return await self._keep_options(queue, now)

    async def _restore_options(self, queue: QueueName) -> StoredOptions:
        known = self._in_force.get(queue)
        wanted = _without_version(known) if known else _NEW  # stored only if Redis has none
        return await self._write_options(queue, wanted, _NO_VERSION)

    async def change_options(
        self, queue: QueueName, change: Change, decides: Collection[str] = ()
    ) -> QueueOptions:
        """Give *queue* the options that *change* returns for its own. If they are changed at the
        same time, *change* is called again, so that no change is lost.
        """
        changed = await self._change(
            queue, lambda stored: stored.with_changes(change(stored.options), decides)
        )
        return changed.now

    async def _change(
        self, queue: QueueName, change: Callable[[StoredOptions], StoredOptions]
    ) -> Declared:
        stored = await self._read_options(queue) or await self._restore_options(queue)
        before, now = await self._replace(queue, stored, change)
        await self._keep_options(queue, now)
        return Declared(before.options, now.options)

    async def _replace(
        self,
        queue: QueueName,
        stored: StoredOptions,
        change: Callable[[StoredOptions], StoredOptions],
    ) -> tuple[StoredOptions, StoredOptions]:
        """Store what *change* makes of the options, called again if others changed them meanwhile.
        Returns the options before and now.
        """
        for _ in range(_CHANGES_MOST):
            wanted = change(stored)
            if wanted == stored:
                return stored, stored
            # A random version, because another process may be storing equal options just now.
            wanted = msgspec.structs.replace(wanted, version=new_version())
            now = await self._store_options(queue, wanted, stored.version)
            if now.version == wanted.version:
                return stored, now
            stored = now
        raise OptionsUnstable(queue)

    def read_listed(self, entries: Mapping[bytes, bytes]) -> dict[QueueName, QueueOptions]:
        """The entries of the list of queues that this release can read."""
        found: dict[QueueName, QueueOptions] = {}
        for raw, value in entries.items():
            name = raw.decode(errors="backslashreplace")
            try:
                found[queue_name(name)] = _decode_options(name, value)
            except (InvalidName, ServerRefused) as error:
                if name not in self._unreadable:
                    self._unreadable.add(name)
                    self._log.emit(QUEUE_UNREADABLE, queue=name[:100], reason=str(error))
        return found

    async def _learn_options_once(self, queue: QueueName, known: StoredOptions) -> StoredOptions:
        """Learn or store the options of a queue. Concurrent calls on an event loop share this;
        each thread does it for itself, and all store the same.
        """
        learn = partial(self._learn_options, queue, known)
        return await self._port.share(self._introducing, queue, learn)

    async def _write_options(
        self, queue: QueueName, wanted: StoredOptions, over: str
    ) -> StoredOptions:
        return await self._keep_options(queue, await self._store_options(queue, wanted, over))

    async def _store_options(
        self, queue: QueueName, wanted: StoredOptions, over: str
    ) -> StoredOptions:
        """Store *wanted* in place of the version *over*. Returns what is stored now."""
        whole = wanted.encode()
        version = wanted.version or version_of(whole)
        packed = SCRIPTED.pack(wanted.options)
        decided = pack(SCRIPTED.decided_values(wanted.options, wanted.decided))
        args = (whole, packed, version, over, wanted.declared, decided, _KNOWN)
        script = self._scripts["configure"]
        return _parse_options(queue, *await self.calls.read(script, keys_of(queue), *args))

    async def _keep_options(self, queue: QueueName, in_force: StoredOptions) -> StoredOptions:
        """Use these options from now on."""
        self._in_force[queue] = in_force
        await self._list_queue(queue)
        return in_force

    async def _list_queue(self, queue: QueueName) -> None:
        """Write *queue* into the list of queues. On a cluster another server may have that list:
        only the first caller waits for it, for a second at most, and calls go on without it.
        """
        if self._port.in_threads:
            await self._list_queue_now(queue)
        elif queue not in self._listing:
            task = detached("entry of the directory of queues", self._keep_listing(queue))
            self._listing[queue] = task
            task.add_done_callback(lambda _: self._listing.pop(queue))
            await asyncio.wait((task,), timeout=_LISTING_SECONDS)

    async def _list_queue_now(self, queue: QueueName) -> None:
        """Write the entry in the caller's thread. If its server does not answer, a later write to
        the queue tries again, because without an event loop there is no task that could.
        """
        if (options := self._in_force.get(queue)) is None:
            return  # deleted meanwhile
        self._unlisted[queue] = steady() + 2 * _LISTING_SECONDS
        try:
            await self._write_entry(queue, options, _LISTING_SECONDS)
        except ServerUnreachable:
            return
        except ServerError:
            pass  # full, or not allowed
        self._unlisted.pop(queue, None)

    async def _keep_listing(self, queue: QueueName) -> None:
        listed: StoredOptions | None = None
        # The options may change while they are written, and the queue may be deleted.
        while (options := self._in_force.get(queue)) is not None and options is not listed:
            try:
                await self._write_entry(queue, options)
            except ServerUnreachable:
                await asyncio.sleep(_LISTING_SECONDS)
            except ServerError:
                return  # full, or not allowed
            else:
                listed = options

    async def _write_entry(
        self, queue: QueueName, options: StoredOptions, within: float | None = None
    ) -> None:
        entry, deadline = options.encode(), self.calls.new_deadline(within)
        command = ("HSET", REGISTRY, queue, entry)
        if await self.calls.command(*command, deadline=deadline) == 1:
            await self._bound_histories(queue)

    async def _bound_histories(self, queue: QueueName) -> None:
        """Keep no history of a new queue if there are already a thousand."""
        if await self.calls.command("HLEN", REGISTRY) > QUEUES_MOST:
            await self.calls.command("HSET", keys_of(queue).meta, "no_history", 1)


def _arguments(verb: str, request: Any, version: str) -> tuple[Any, ...]:
    """The arguments of a script. The id and the payload of one plain job are separate arguments:
    with them the script takes its shortest way.
    """
    if verb == "submit" and len(request) == 1 and request[0].more is None:
        return (b"", version, request[0].id, request[0].payload)
    return (pack(request), version)


def _without_version(known: StoredOptions) -> StoredOptions:
    """Returns the same options without a version: a version made from the options is equal in all
    processes.
    """
    return msgspec.structs.replace(known, version="")


def _parse_options(
    queue: str, stored: bytes, version: bytes, declared: bytes | None, packed: bytes | None
) -> StoredOptions:
    options = _decode_options(queue, stored)
    if not version.startswith(LAYOUT_MARK.encode()):
        raise LayoutDiffers(queue, LAYOUT)  # another layout was written over ours
    _, whole = msgspec.json.decode(stored, type=tuple[int, dict[str, msgspec.Raw]])
    beyond = {name: value for name, value in whole.items() if name not in KNOWN}
    is_foreign = not (packed or b"").startswith(SCRIPTED.form.encode())
    decided = KNOWN.intersection(whole)
    return StoredOptions(options, version.decode(), declared or b"", decided, is_foreign, beyond)


def _decode_options(queue: str, stored: bytes) -> QueueOptions:
    """Read stored options. Raises ServerRefused for those that only a newer release can read,
    LayoutDiffers for a queue with another layout.
    """
    if layout_of(stored) != LAYOUT:
        raise LayoutDiffers(queue, LAYOUT)
    try:
        return msgspec.json.decode(stored, type=tuple[int, QueueOptions])[1]
    except (msgspec.MsgspecError, InvalidOption) as error:
        text = f"this release can't read the options of queue {queue}: {error}"
        raise ServerRefused(text) from error
