"""Checksums as S3 writes them, and the checksum of a whole from those of its parts."""

import base64
import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from towpath.apps.uploads.stores.checksums import Algorithm, Checksum, combined
from towpath.errors import InvalidOption

CHECK = b"123456789"
"""What the catalogues of CRCs give the values of."""


def plain_crc(data: bytes, *, polynomial: int, width: int) -> int:
    """A CRC computed bit by bit: reflected, with initial ones, inverted at the end."""
    ones = (1 << width) - 1
    crc = ones
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (polynomial if crc & 1 else 0)
    return crc ^ ones


DEFINED = {
    Algorithm.CRC32C: {"polynomial": 0x82F63B78, "width": 32},
    Algorithm.CRC64NVME: {"polynomial": 0x9A6C9329AC4BC9B5, "width": 64},
}


class TestAChecksum:
    @pytest.mark.parametrize(
        ("algorithm", "value"),
        [(Algorithm.CRC32C, 0xE3069283), (Algorithm.CRC64NVME, 0xAE8B14860A799888)],
    )
    def test_a_crc_equals_the_published_check_value(self, algorithm: Algorithm, value: int) -> None:
        assert int.from_bytes(Checksum.of(algorithm, [CHECK]).raw) == value
        assert plain_crc(CHECK, **DEFINED[algorithm]) == value

    def test_the_checksum_of_pieces_equals_that_of_the_whole(self) -> None:
        for algorithm in Algorithm:
            pieces = [CHECK[:2], memoryview(CHECK)[2:5], bytearray(CHECK[5:])]
            assert Checksum.of(algorithm, pieces) == Checksum.of(algorithm, [CHECK])
        digest = hashlib.sha256(CHECK).digest()
        assert Checksum.of(Algorithm.SHA256, [CHECK]).raw == digest

    def test_a_checksum_is_parsed_from_base64_and_hex(self) -> None:
        for algorithm in Algorithm:
            meant = Checksum.of(algorithm, [CHECK])
            assert Checksum.parse(algorithm, meant.value) == meant
            assert Checksum.parse(algorithm, meant.raw.hex()) == meant
            assert Checksum.parse(algorithm, meant.raw.hex().upper()) == meant

    @pytest.mark.parametrize(
        ("algorithm", "value"),
        [
            ("md5", "aaaa"),
            ("crc32c", ""),
            ("crc32c", "nonsense"),
            ("crc32c", "zz" * 4),
            ("crc64nvme", base64.b64encode(b"1234").decode()),
            ("sha256", "=" * 44),
            ("crc32c", "ä" * 8),
        ],
    )
    def test_an_impossible_checksum_is_refused(self, algorithm: str, value: str) -> None:
        with pytest.raises(InvalidOption):
            Checksum.parse(algorithm, value)


class TestTheChecksumOfTheWhole:
    @given(parts=st.lists(st.binary(max_size=40), min_size=1, max_size=6))
    @pytest.mark.parametrize("algorithm", [Algorithm.CRC32C, Algorithm.CRC64NVME])
    def test_checksums_of_parts_combine_to_that_of_the_whole(
        self, algorithm: Algorithm, parts: list[bytes]
    ) -> None:
        whole = combined((Checksum.of(algorithm, [part]), len(part)) for part in parts)
        assert int.from_bytes(whole.raw) == plain_crc(b"".join(parts), **DEFINED[algorithm])

    def test_checksums_of_large_parts_combine(self) -> None:
        parts = [bytes([n]) * (n * 1_000_003) for n in (1, 2, 3)]
        for algorithm in (Algorithm.CRC32C, Algorithm.CRC64NVME):
            found = combined((Checksum.of(algorithm, [part]), len(part)) for part in parts)
            assert found == Checksum.of(algorithm, parts)

    def test_checksums_that_do_not_combine_are_refused(self) -> None:
        one = Checksum.of(Algorithm.SHA256, [CHECK])
        other = Checksum.of(Algorithm.CRC32C, [CHECK])
        another = Checksum.of(Algorithm.CRC64NVME, [CHECK])
        for parts in ([], [(one, 9)], [(other, 9), (another, 9)]):
            with pytest.raises(ValueError):  # noqa: PT011 -- the function raises no other one
                combined(parts)
