"""Ids that Towpath makes are unique and sorted by age; names are checked in one place."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from towpath.clock import wall_ms
from towpath.errors import InvalidName
from towpath.ids import job_id, lane_key, new_job_id, queue_name, worker_name

ALPHABET = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"

FORKED = """
import os
from towpath.ids import new_job_id
new_job_id()
pid = os.fork()
os.write(1, f"{new_job_id()}\\n".encode())
if pid:
    os.waitpid(pid, 0)
"""


class TestAGeneratedId:
    def test_is_26_characters_without_lookalikes(self) -> None:
        id = new_job_id()
        assert len(id) == 26
        assert set(id) <= set(ALPHABET)

    def test_is_unique(self) -> None:
        ids = [new_job_id() for _ in range(100_000)]
        assert len(set(ids)) == len(ids)

    def test_sorts_by_the_time_it_was_made(self) -> None:
        ids = [new_job_id() for _ in range(10_000)]
        times = [id[:10] for id in ids]
        assert times == sorted(times)

    def test_begins_with_the_time_in_milliseconds(self) -> None:
        before = wall_ms()
        id = new_job_id()
        made = 0
        for character in id[:10]:
            made = made * 32 + ALPHABET.index(character)
        assert before <= made <= wall_ms()

    def test_is_unique_across_threads(self) -> None:
        def make(count: int) -> list[str]:
            return [new_job_id() for _ in range(count)]

        with ThreadPoolExecutor(8) as threads:
            ids = [id for lot in threads.map(make, [2000] * 8) for id in lot]
        assert len(set(ids)) == len(ids)

    def test_is_unique_across_forks(self) -> None:
        told = subprocess.run([sys.executable, "-c", FORKED], check=True, capture_output=True)
        one, two = told.stdout.split()
        assert one != two

    def test_is_a_valid_id(self) -> None:
        id = new_job_id()
        assert job_id(id) == id


class TestNames:
    @pytest.mark.parametrize("name", ["a", "0", "reviews.v2", "a_b-c", "x" * 64])
    def test_of_queues_that_are_valid_are_accepted(self, name: str) -> None:
        assert queue_name(name) == name

    @pytest.mark.parametrize("name", ["", "A", "a b", "{a}", "é", "x" * 65, "a\n", 7, None])
    def test_of_queues_that_are_invalid_are_refused(self, name: Any) -> None:
        with pytest.raises(InvalidName) as refusal:
            queue_name(name)
        assert refusal.value.kind == "queue"

    @pytest.mark.parametrize("check", [job_id, lane_key, worker_name])
    def test_of_jobs_lanes_and_workers_may_be_almost_any_text(self, check: Any) -> None:
        for text in (
            "x",
            "a:b#c/d e",
            "{x}",
            "日本",
            "\N{ZERO WIDTH JOINER}",
            "x" * 512,
            "ß" * 256,
        ):
            assert check(text) == text

    @pytest.mark.parametrize("check", [job_id, lane_key, worker_name])
    def test_of_jobs_lanes_and_workers_have_limits(self, check: Any) -> None:
        for text in ("", "x" * 513, "ß" * 257, "a\tb", "\x00", "\x9f", "\u2029", "\ud800", 7, b"x"):
            with pytest.raises(InvalidName):
                check(text)
