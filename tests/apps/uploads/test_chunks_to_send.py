"""The order in which `towpath upload` sends chunks, and which it sends together."""

import threading

from towpath.apps.uploads.client.chunks import ChunksToSend


def all_of(queue: ChunksToSend, most: int) -> list[range]:
    """All that a single thread sends."""
    found: list[range] = []
    while numbers := queue.next(most):
        found.append(numbers)
        queue.done(numbers)
    return found


def test_chunks_that_follow_each_other_are_sent_together() -> None:
    assert all_of(ChunksToSend(range(10), 100), 4) == [range(4), range(4, 8), range(8, 10)]
    assert all_of(ChunksToSend(range(3), 100), 1) == [range(1), range(1, 2), range(2, 3)]


def test_chunks_of_two_parts_are_not_sent_together() -> None:
    assert all_of(ChunksToSend(range(2, 9), 4), 100) == [range(2, 4), range(4, 8), range(8, 9)]


def test_chunks_around_a_gap_are_not_sent_together() -> None:
    assert all_of(ChunksToSend([0, 1, 3, 7, 8], 100), 100) == [
        range(2),
        range(3, 4),
        range(7, 9),
    ]


def test_chunks_given_back_are_sent_again_except_those_that_arrived() -> None:
    queue = ChunksToSend(range(6), 100)
    numbers = queue.next(4)
    assert numbers is not None
    assert numbers == range(4)
    queue.done([0, 1])
    queue.back(numbers)
    assert all_of(queue, 100) == [range(2, 6)]


def test_chunks_that_the_server_asks_for_are_sent_first() -> None:
    queue = ChunksToSend(range(8), 100)
    held = queue.next(2)
    assert held == range(2)
    queue.first([0, 5, 6])
    assert queue.next(100) == range(5, 7)
    assert queue.next(100) == range(2, 5)


def test_a_sent_chunk_that_is_missing_again_waits_for_the_next_status() -> None:
    queue = ChunksToSend(range(2), 100)
    queue.done(range(2))
    queue.first([0])
    assert queue.next(1) is None


def test_a_thread_with_nothing_to_send_waits_for_chunks_that_others_give_back() -> None:
    queue, found = ChunksToSend(range(2), 100), list[range | None]()
    held = queue.next(2)
    assert held is not None
    thread = threading.Thread(target=lambda: found.append(queue.next(2)))
    thread.start()
    queue.back(held)
    thread.join()
    assert found == [range(2)]


def test_no_thread_waits_after_the_end() -> None:
    queue, found = ChunksToSend(range(2), 100), list[range | None]()
    assert queue.next(2) == range(2)
    thread = threading.Thread(target=lambda: found.append(queue.next(2)))
    thread.start()
    queue.end()
    thread.join()
    assert found == [None]
