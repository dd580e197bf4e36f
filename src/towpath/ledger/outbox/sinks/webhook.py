"""A webhook: one signed call to an HTTP endpoint per event."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from hashlib import sha256

from towpath.calls.answer import CallAnswer, Next, advice
from towpath.calls.caller import Caller
from towpath.calls.errors import AnswerTooLarge, CallError
from towpath.calls.signature import headers_for, message_id
from towpath.engine.check import integer
from towpath.errors import InvalidInput
from towpath.ids import sink_name
from towpath.ledger.outbox.event import (
    CONTENT_TYPE,
    Behind,
    OutboxEvent,
    Outcome,
    Postponed,
    Refusal,
)

AT_ONCE = 8
_LONGEST_ID = 1024
_HEADERS = {"content-type": CONTENT_TYPE}


class WebhookSink:
    """Posts each event to *url*, signed with *secrets* by Standard Webhooks.

    `webhook-id` is the event's id, the same in every attempt. Events of one key are sent one after
    the other, those of up to *at_once* keys in parallel. 2xx means accepted; without an answer, or
    for statuses that mean later (`calls/answer.py`), the event is sent again; everything else is a
    refusal for good. Raises CallRefused for a forbidden address, and SecretInvalid.
    """

    def __init__(
        self,
        caller: Caller,
        url: str,
        *,
        secrets: Sequence[str],
        name: str = "webhook",
        at_once: int = AT_ONCE,
    ) -> None:
        self.name = sink_name(name)
        caller.check(url)
        headers_for(secrets, "one", b"")  # raises SecretInvalid now, not at the first event
        self._caller, self._url, self._secrets = caller, url, list(secrets)
        self._at_once = integer("at_once", at_once, 1, 100)

    async def send(self, events: Sequence[OutboxEvent]) -> Sequence[Outcome]:
        """Send each event in a call of its own. Does not raise SinkUnreachable: each event has an
        outcome of its own.
        """
        round_ = _Round(events, failures_most=self._at_once)
        async with asyncio.TaskGroup() as calls:
            for _ in range(min(self._at_once, len(round_.keys))):
                calls.create_task(self._walk(round_))
        return [round_.outcomes.get(event.seq, Behind()) for event in events]

    async def close(self) -> None:
        """Do nothing: the owner of the caller closes it."""

    async def _walk(self, round_: _Round) -> None:
        """Send the events of one key after the other, as long as the receiver answers."""
        for waiting in round_.next_keys():
            for event in waiting:
                outcome = await self._deliver(event)
                round_.note(event, outcome)
                if isinstance(outcome, Postponed):
                    break

    async def _deliver(self, event: OutboxEvent) -> Outcome:
        try:
            answer = await self._caller.post(
                self._url,
                event.encoded(),
                headers=_HEADERS,
                message=_message(event),
                secrets=self._secrets,
            )
        except AnswerTooLarge as error:
            return _meaning(CallAnswer(error.status, {}, b""))
        except CallError as error:
            return Postponed(str(error))
        except InvalidInput as error:
            return Refusal(str(error))
        return _meaning(answer)


class _Round:
    """The send of one batch: the events of each key in order, and their outcomes."""

    def __init__(self, events: Sequence[OutboxEvent], *, failures_most: int) -> None:
        self.keys: dict[str, list[OutboxEvent]] = {}
        for event in events:
            self.keys.setdefault(event.key, []).append(event)
        self.outcomes: dict[int, Outcome] = {}
        self._waiting = iter(self.keys.values())
        self._failures_most, self._failures = failures_most, 0

    def next_keys(self) -> Iterator[list[OutboxEvent]]:
        """Yield the events of keys that are not yet begun; stop after several failures in a row.

        A receiver that is down is not called for every key.
        """
        while self._failures < self._failures_most:
            waiting = next(self._waiting, None)
            if waiting is None:
                return
            yield waiting

    def note(self, event: OutboxEvent, outcome: Outcome) -> None:
        self.outcomes[event.seq] = outcome
        self._failures = self._failures + 1 if isinstance(outcome, Postponed) else 0


def _message(event: OutboxEvent) -> str:
    """Encode the event's id for the header; if it is too long, return its digest."""
    id = message_id(event.id)
    return id if len(id) <= _LONGEST_ID else f"sha256:{sha256(id.encode()).hexdigest()}"


def _meaning(answer: CallAnswer) -> Outcome:
    advised = advice(answer)
    if advised.next is Next.DONE:
        return None
    reason = f"the receiver answered {answer.status}"
    return Postponed(reason, advised.after) if advised.next is Next.LATER else Refusal(reason)
