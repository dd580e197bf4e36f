"""Planted faults: edits of the scripts' text; the model test must fail with each of them."""

from __future__ import annotations

from dataclasses import dataclass

from tests.faults.planting import PlantedFault
from towpath.engine.script import INDEX_SCRIPTS, Scripts, lua_text


@dataclass(frozen=True)
class Edit:
    """Replaces these words in this piece of Lua by others."""

    piece: str
    words: str
    instead: str


class Mutant:
    """A fault, and the edits that plant it."""

    def __init__(self, name: str, *edits: tuple[str, str, str]) -> None:
        self.name = name
        self._edits = [Edit(*edit) for edit in edits]

    def __str__(self) -> str:
        return self.name

    @property
    def pieces(self) -> list[str]:
        """The pieces of Lua that it edits."""
        return [edit.piece for edit in self._edits]

    def scripts(self) -> Scripts:
        """The scripts with the fault. Fails unless the words of each edit occur exactly once."""
        for edit in self._edits:
            found = _text(edit.piece).count(edit.words)
            assert found == 1, f"{self.name}: {found} times in {edit.piece}.lua: {edit.words}"
        return Scripts(self._edited)

    def _edited(self, piece: str, text: str) -> str:
        for edit in self._edits:
            if edit.piece == piece:
                text = text.replace(edit.words, edit.instead)
        return text


def _text(piece: str) -> str:
    beside = INDEX_SCRIPTS / f"{piece}.lua"
    return beside.read_text("utf-8") if beside.is_file() else lua_text(piece)


_LEASES_ENDED = "redis.call('ZRANGEBYSCORE', LEASES, '-inf', now, 'WITHSCORES', 'LIMIT', 0, limit)"
_LASTS = "tonumber(redis.call('ZSCORE', LEASES, id)) > now"
_DUE = "redis.call('ZRANGEBYSCORE', RETRY, '-inf', now, 'LIMIT', 0, limit)"

MUTANTS = [
    # ── the clock ──
    Mutant(
        "the clock of the caller",
        (
            "clock",
            "now = tonumber(ARGV[1])",
            "now = tonumber(ARGV[1]) + (ARGV[2] == 'b' and 3600000 or 0)",
        ),
    ),
    Mutant(
        "the server's clock though another was given",
        ("clock", "if ARGV[1] == '' then", "if true then"),
    ),
    Mutant(
        "promoted 1 ms early",
        ("promote", _DUE, _DUE.replace("now", "now + 1")),
        ("moves", "if due > now then", "if due > now + 1 then"),
    ),
    Mutant("promoted late by 1 ms", ("promote", _DUE, _DUE.replace("now", "now - 1"))),
    Mutant(
        "reaped 1 ms before the lease's end",
        ("reap", _LEASES_ENDED, _LEASES_ENDED.replace("now", "now + 1")),
    ),
    Mutant(
        "a submitted job does not wait for its time",
        ("accept", "elseif more.due then", "elseif due > now + 60000 then"),
    ),
    # ── leases and tokens ──
    Mutant(
        "no token check", ("held", "state == 'leased' and job.token == token", "state == 'leased'")
    ),
    Mutant(
        "a lease ends by itself, before it is reaped",
        (
            "held",
            "if state == 'leased' and job.token == token then",
            f"if state == 'leased' and job.token == token and {_LASTS} then",
        ),
    ),
    Mutant(
        "tokens through tostring",
        ("lease", "next_token(), job.attempts", "tonumber(tostring(next_token())), job.attempts"),
    ),
    Mutant(
        "tokens repeat",
        ("meta", "math.max(now_us, meta.token + 1)", "math.max(now_us, meta.token)"),
    ),
    Mutant(
        "attempts are not counted", ("lease", "job.attempts + 1, worker", "job.attempts, worker")
    ),
    Mutant("a release counts the attempt", ("release", "job.attempts = job.attempts - 1", "")),
    Mutant(
        "each release without a handler begins anew",
        ("release", "not anew and job.unhandled_since or now", "now"),
    ),
    Mutant(
        "a job that was run is unhandled as long as before",
        ("moves", "forget_unhandled(job)  -- a worker tried it", ""),
    ),
    Mutant("one attempt too many", ("ends", "job.attempts >= most", "job.attempts > most")),
    Mutant("a job's own lease time is ignored", ("lease", "job.lease or lease", "lease")),
    Mutant(
        "a renewal does not hold",
        ("renew", "job.ttl, job.score = ttl, now + ttl", "job.ttl, job.score = ttl, nil"),
    ),
    Mutant(
        "a refused failure is counted",
        (
            "fail",
            "local job, refusal = held(id, token)",
            "count('failed')\n  local job, refusal = held(id, token)",
        ),
    ),
    Mutant("the lock stays after the lease", ("plan", "unlinks[#unlinks + 1] = LOCK .. id", "")),
    # ── order and lanes ──
    Mutant("order by id text", ("accept", "5e14 + tick", "5e14")),
    Mutant(
        "the lowest priority first",
        ("accept", "(100 - (more.priority or 50))", "(more.priority or 50)"),
    ),
    Mutant(
        "reaped to the end of the queue",
        ("reap", "set(job, 'reason', reason)\n    enter_ready(job)", "enter_behind(job)"),
    ),
    Mutant("deaths of workers are not counted", ("reap", "(job.deaths or 0) + 1", "1")),
    Mutant(
        "a retried job has died before", ("retry", "job.deaths, job.ended", "job.none, job.ended")
    ),
    Mutant(
        "released to the end of the queue", ("release", "enter_ready(job)", "enter_behind(job)")
    ),
    Mutant(
        "a retry replaces the due time",
        ("moves", "set(job, 'asked_due', job.asked_due or job.due or 0)", ""),
    ),
    Mutant(
        "the second retry replaces the due time",
        ("moves", "job.asked_due or job.due or 0", "job.due or 0"),
    ),
    Mutant(
        "a dead job that is retried loses its due time",
        ("retry", "job.asked_due = job.asked_due or job.due", ""),
    ),
    Mutant(
        "a moved job keeps the due time that it had",
        ("move", "job.asked_due, job.keep_turn = nil, nil", "job.keep_turn = nil"),
    ),
    Mutant("a failed job loses its turn", ("fail", "job.keep_turn = keep_turn", "")),
    Mutant("a job keeps its turn for ever", ("promote", "job.keep_turn = nil", "")),
    Mutant(
        "promoted in the order of tries",
        (
            "promote",
            "local first, second = due_of(a), due_of(b)",
            "local first, second = a.due, b.due",
        ),
    ),
    Mutant("promoted in the order of ids", ("promote", "table.sort(due, by_due_then_tick)", "")),
    Mutant(
        "a claim overlooks what it made ready",
        ("choose", "if #risen == 0 then return found end", "do return found end"),
    ),
    Mutant("lanes do not take turns", ("moves", "set(job, 'turn', next_tick())", "")),
    Mutant(
        "the lane's next by id text",
        ("accept", "zadd(LANE .. more.lane, tick, id)", "zadd(LANE .. more.lane, 0, id)"),
    ),
    Mutant("two of a lane in flight", ("accept", "if holder_of(lane) then return true end", "")),
    Mutant(
        "the lane does not go on",
        (
            "lanes",
            "if lane.holder == job.id then\n    advance_lane(lane)",
            "if lane.holder == job.id then\n    hold_lane(lane, nil)",
        ),
    ),
    Mutant(
        "skip does not skip", ("fail", "if options.lanes == 'skip' then leave_lane(job) end", "")
    ),
    Mutant(
        "park does not park",
        ("ends", "if options.lanes ~= 'park' then leave_lane(job) end", "leave_lane(job)"),
    ),
    # ── repeated calls, known ids ──
    Mutant("a repeated call runs again", ("calls", "if last == number then", "if false then")),
    Mutant(
        "a repeated call is refused by the options of the day",
        ("queue", "if not remembered then", "do"),
    ),
    Mutant(
        "a repeated claim takes new jobs",
        ("answer_one", "if remembered then return recall(remembered) end", ""),
    ),
    Mutant(
        "a repeated claim shows leases of others",
        (
            "lease",
            "job.state == 'leased' and job.token == memory[i + 1]",
            "job.state == 'leased'",
        ),
    ),
    Mutant(
        "a late call is taken",
        ("calls", "elseif tonumber(last) > tonumber(number) then", "elseif false then"),
    ),
    Mutant(
        "ids are not looked up",
        ("remembered", "local job = stored[id]", "if id then return end local job = stored[id]"),
    ),
    Mutant("twins in a batch are two", ("remembered", "if twin then", "if false then")),
    Mutant(
        "existed is not said",
        (
            "remembered",
            "return { 'existed', job.state, kept and SAME[kept == payload] or 'unknown' }",
            "return job.state",
        ),
    ),
    Mutant(
        "the window of known ids is ignored", ("remembered", "tonumber(forget_at) > now", "false")
    ),
    Mutant(
        "ids are known for ever",
        ("remembered", "forget_at and tonumber(forget_at) > now", "forget_at"),
    ),
    Mutant(
        "the window of known ids begins too early",
        ("ends", "now + keep + options.remember", "now + options.remember"),
    ),
    # ── move ──
    Mutant("a moved job stays ready", ("move", "'ready' and due == now then", "'ready' then")),
    Mutant(
        "a ready job that is moved to now loses its place",
        ("move", "if job.state == 'ready' and due == now then return 'ready' end", ""),
    ),
    Mutant(
        "a moved job comes before those that are ready",
        (
            "move",
            "elseif take_lane(job) then\n    enter_behind(job)",
            "elseif take_lane(job) then\n    enter_ready(job)",
        ),
    ),
    Mutant(
        "behind its lane's head a job keeps its old time",
        ("move", "set(job, 'due', due)", "if job.state ~= 'waiting' then set(job, 'due', due) end"),
    ),
    Mutant(
        "a time in the past counts from the beginning of time",
        ("move", "due = math.max(now, due < 0 and now + delay or due)", "due = math.max(0, due)"),
    ),
    Mutant(
        "a job is moved under its worker's hands",
        (
            "move",
            "if not WAITS[job.state] then",
            "if job.state ~= 'leased' and not WAITS[job.state] then",
        ),
    ),
    # ── set ──
    Mutant(
        "a job is replaced under its worker's hands",
        ("set", "if old.state == 'leased' then return { 'JOB_NOT_WAITING', old.state } end", ""),
    ),
    Mutant(
        "what is replaced stays where it was",
        ("set", "if job.stored then zrem(ZSET[job.stored], job.id) end", ""),
    ),
    Mutant(
        "what is replaced stays in its lane",
        ("set", "if job.stored == 'waiting' then zrem(LANE .. job.lane, job.id) end", ""),
    ),
    Mutant("a lane stops with what is replaced", ("set", "leave_lane(job)", "")),
    Mutant(
        "what is set has the result of the one before",
        ("set", "if job.gone_at then unlinks[#unlinks + 1] = RESULT .. job.id end", ""),
    ),
    Mutant(
        "what is set has only the attempts that were left",
        # A record without a token has no attempts.
        (
            "set",
            "job.tick, job.more =",
            "job.token, job.attempts, job.tick, job.more = old.token, old.attempts,",
        ),
    ),
    Mutant(
        "the first of two that are set stays too",
        ("set", "for i = job.changed and #changed or 0, 1, -1 do", "for i = 0, 1, -1 do"),
    ),
    Mutant(
        "what is set does not wait for its time",
        (
            "set",
            "if job.due then enter_delayed(job, job.due) else enter_ready(job) end",
            "enter_ready(job)",
        ),
    ),
    Mutant(
        "what replaces another needs room", ("set", "if not replaces and room <= 0", "if room <= 0")
    ),
    Mutant("what is set needs no room", ("set", "if not replaces and room <= 0", "if false")),
    # ── ends, limits ──
    Mutant("the wish to cancel is lost", ("cancel", "set(job, 'cancel', 1)", "")),
    Mutant(
        "a wish to cancel beats the completion",
        ("complete", "finish(job, 'done')", "finish(job, job.cancel and 'cancelled' or 'done')"),
    ),
    Mutant("a dead job is not kept", ("ends", "enter_dead(job, reason)", "delete_job(job)")),
    Mutant("a finished job is not kept", ("ends", "if keep > 0 then", "if false then")),
    Mutant(
        "trim leaves the record",
        (
            "trim",
            "job.stored, job.state = 'done', 'gone'\n    change(job)",
            "take_out(DONE, job.id)",
        ),
    ),
    Mutant(
        "a retried job has no attempts left",
        ("retry", "= 0, nil, nil, nil, nil", "= job.attempts, nil, nil, nil, nil"),
    ),
    Mutant("a paused queue gives jobs", ("claim", "meta.paused > 0", "false")),
    Mutant(
        "one job too many",
        ("waits", "local room = options.max_length", "local room = options.max_length + 1"),
    ),
    # ── where payloads are ──
    Mutant(
        "a large payload stays when its job goes",
        ("plan", "if not job.payload then unlinks[#unlinks + 1] = LOAD .. id end", ""),
    ),
    Mutant(
        "a large payload is kept for ever",
        (
            "close",
            "if not job.payload then redis.call('PEXPIRE', LOAD .. job.id, job.expire) end",
            "",
        ),
    ),
    Mutant(
        "what is set leaves the large payload of the one before",
        ("set", "job.replaces_large = old.replaces_large or (old.stored and not old.payload)", ""),
    ),
    Mutant(
        "a batch takes in more than there is room for", ("submit", "room = room - 1", "room = room")
    ),
    Mutant(
        "a new job leaves the large payload of one that ended",
        ("submit", "if #payload <= SMALL then leftovers[#leftovers + 1] = LOAD .. id end", ""),
    ),
    Mutant(
        "a large payload is not written down as such",
        ("accept", "code, payload = code + APART, ''", "payload = ''"),
    ),
    Mutant(
        "a record is read from the wrong byte",
        ("record", "string.sub(text, at)\n  return job", "string.sub(text, at + 1)\n  return job"),
    ),
    # ── options ──
    Mutant(
        "what is declared is not kept",
        ("configure", "redis.call('HSET', META, 'declared', declared)", ""),
    ),
    # ── the short way of plain jobs ──
    Mutant("the short way checks no token", ("plain_ends", " or token ~= items[i][first + 1]", "")),
    Mutant("the short way keeps nothing", ("plain_ends", "options.keep > 0 and", "false and")),
    Mutant(
        "the short way keeps for ever",
        ("plain_ends", "kept[i][2], 'PX', options.keep)", "kept[i][2])"),
    ),
    Mutant(
        "the short way loses the result",
        ("plain_ends", "if result and result ~= '' then", "if false then"),
    ),
    Mutant(
        "the short way does not list what it keeps",
        ("plain_ends", "redis.call('ZADD', DONE, unpack(shelved))", ""),
    ),
    Mutant("the short way leaves the lock", ("plain_ends", "= LOCK .. id", "= LOCK")),
    Mutant(
        "the short way leaves a large payload",
        ("plain_ends", "if code > APART then unlinks[#unlinks + 1] = LOAD .. id end", ""),
    ),
    Mutant(
        "the short way keeps a job without its payload",
        ("plain_ends", ".. mark .. string.sub(text, at)", ".. mark"),
    ),
    Mutant(
        "the short way loses a large payload",
        ("plain_submit", "code, payload = READY + APART, ''", "payload = ''"),
    ),
    Mutant(
        "the short way leaves the payload to the first attempt",
        ("plain_leases", "head .. (small or '')", "head"),
    ),
    Mutant(
        "the short way overlooks what is not plain",
        (
            "plain_leases",
            "[READY] = START,",
            "[READY] = START, [READY + NOT_PLAIN] = START,",
        ),
    ),
    Mutant(
        "the short way overlooks what is due",
        ("plain_leases", "if due <= now then return false end", ""),
    ),
    Mutant("the short way overlooks a pause", ("plain_leases", " or meta.paused > 0", "")),
    Mutant(
        "the short way repeats tokens",
        ("plain_leases", "token, attempts = token + 1, attempts + 1", "attempts = attempts + 1"),
    ),
    Mutant(
        "the short way counts no attempt",
        ("plain_leases", "token, attempts = token + 1, attempts + 1", "token = token + 1"),
    ),
    Mutant(
        "the short way looks up no ids",
        ("plain_submit", "plain = plain and not texts[i]", "plain = plain"),
    ),
    Mutant("the short way orders by id text", ("plain_submit", "5e14 + tick, id", "5e14, id")),
    Mutant("the short way knows no limit", ("plain_submit", " and options.max_length == 0", "")),
    Mutant(
        "the shortest way looks up no id",
        ("lone_submit", "call('SET', JOB, text, 'NX')", "call('SET', JOB, text)"),
    ),
    Mutant(
        "the shortest way remembers no call",
        ("lone_submit", "ARGV[3] .. ' submit', 'PX'", "'0 submit', 'PX'"),
    ),
    Mutant(
        "the shortest way drops the memory of a repeated call",
        ("lone_submit", "call('SET', CALL, last, 'PX', 600000)", "call('UNLINK', CALL)"),
    ),
    Mutant("the shortest way knows no limit", ("lone_submit", "max_length == 0 and ", "")),
    Mutant(
        "the shortest way orders by nothing",
        ("lone_submit", "5e14 + tick, lone_id", "5e14, lone_id"),
    ),
    Mutant(
        "the shortest way leaves the payload to its key",
        ("lone_submit", ".. lone_payload\n", "\n"),
    ),
    Mutant(
        "a claim repeated the short way takes new jobs",
        ("request", "not remembered and ", ""),
        ("plain_claim", "if not remembered then", "if true then"),
    ),
    Mutant(
        "an exchange repeated the short way settles again",
        ("plain_exchange", "if not remembered then", "if true then"),
    ),
]

_DECLARING = "towpath.engine.options", "StoredOptions.with_declared"
DECLARATIONS = [
    PlantedFault(
        "a declaration undoes what an operator changed",
        *_DECLARING,
        "if getattr(self.options, name) == getattr(base, name)",
        "if True",
    ),
    PlantedFault(
        "only the first declaration holds",
        *_DECLARING,
        "base = self.base",
        "base = QueueOptions()",
    ),
    PlantedFault(
        "a declaration forgets the options that it does not name",
        *_DECLARING,
        "self._declarations() | msgspec.to_builtins(dict(wanted))",
        "msgspec.to_builtins(dict(wanted))",
    ),
    PlantedFault(
        "a reset gives the defaults",
        "towpath.engine.options",
        "StoredOptions.base",
        'self.declared or b"{}"',
        'b"{}"',
    ),
]
"""Faults of the engine's own code: what it makes of declarations is not a script's."""
