"""The program of `examples/uploads`."""

import os
import random
import sys
from hashlib import sha256
from pathlib import Path

from tests.programs import ROOT, run
from towpath.embedded import EmbeddedServer


def test_the_archive_stores_a_file_and_reads_it_back_again_and_again(
    server: EmbeddedServer, tmp_path: Path
) -> None:
    file = tmp_path / "report.pdf"
    file.write_bytes(random.Random(3).randbytes(9 * 1024 * 1024 + 5))
    env = {**os.environ, "REDIS_URL": server.url, "ARCHIVE": str(tmp_path / "archive")}
    digest = sha256(file.read_bytes()).hexdigest()
    for _ in range(2):
        words = [sys.executable, str(ROOT / "examples" / "uploads" / "archive.py"), str(file)]
        ran = run(words, env=env, cwd=ROOT)
        assert ran.code == 0, ran.err
        assert ran.out == f"report.pdf: {9 * 1024 * 1024 + 5} bytes, sha256 {digest}\n"
    objects = [
        path for path in (tmp_path / "archive" / "objects" / "names").rglob("*") if path.is_file()
    ]
    assert len(objects) == 1
