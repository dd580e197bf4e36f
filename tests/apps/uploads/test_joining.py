"""The plan that assigns bytes of pieces to the parts of a joined object."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from towpath.apps.uploads.concatenation import parts_of

SIZES = st.lists(st.integers(0, 60), max_size=8)
busy = settings(suppress_health_check=[HealthCheck.too_slow])
"""A machine may be busy with others."""


@busy
@given(SIZES)
def test_every_byte_is_in_one_part_in_order(sizes: list[int]) -> None:
    spans = [span for part in parts_of(sizes, copied=20, least=5) for span in part]
    bytes_of = [(span.piece, span.start + at) for span in spans for at in range(span.length)]
    assert bytes_of == [(piece, at) for piece, size in enumerate(sizes) for at in range(size)]


@busy
@given(SIZES)
def test_every_part_but_the_last_is_large_enough(sizes: list[int]) -> None:
    parts = parts_of(sizes, copied=20, least=5)
    lengths = [sum(span.length for span in part) for part in parts]
    assert all(length >= 5 for length in lengths[:-1])
    assert all(length < 25 for length in lengths)


@busy
@given(SIZES)
def test_only_pieces_that_are_too_small_are_read(sizes: list[int]) -> None:
    """They make parts of the smallest size; all other bytes are copied inside the object store."""
    for part in parts_of(sizes, copied=20, least=5):
        if len(part) > 1:
            assert sum(span.length for span in part) <= 5


def test_a_piece_of_many_parts_is_copied_whole() -> None:
    assert [len(part) for part in parts_of([100], copied=20, least=5)] == [1] * 5
