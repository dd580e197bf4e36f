"""Commits that try to control the tools that read them: real linters, real repositories."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from clones import LARGEST_FILE
from isolation import NotIsolated, isolated
from tests.apps.reviews.linting import LinterRuns
from tests.apps.reviews.repositories import Repository
from tests.apps.reviews.reviewing import a_push
from towpath.apps.reviews.model import Review, Verdict

HERE = Path(sys.executable).parent
RUFF = [str(HERE / "ruff"), "check", "--quiet", "--output-format=concise"]
FLAKE8 = [str(HERE / "flake8")]
UNUSED = "import os\n"


@pytest.fixture
def touched(tmp_path: Path) -> Path:
    """The files that a successful attack would leave on this machine."""
    return tmp_path / "touched"


def paths(review: Review) -> list[str]:
    return [comment.path for comment in review.comments]


class TestCodeOfTheCommit:
    @pytest.mark.parametrize(
        "linter", [FLAKE8, [sys.executable, "-m", "flake8"]], ids=["flake8", "python -m flake8"]
    )
    @pytest.mark.parametrize("name", [".flake8", "setup.cfg", "tox.ini"])
    def test_does_not_run_as_a_plug_in_of_flake8(
        self,
        linting: LinterRuns,
        repository: Repository,
        touched: Path,
        linter: list[str],
        name: str,
    ) -> None:
        plug_in = "[flake8:local-plugins]\nextension = X = evil:Plugin\npaths = .\n"
        trap = f"import pathlib\npathlib.Path({str(touched)!r}).touch()\nclass Plugin: pass\n"
        files = {name: f"[flake8]\nexclude = *\n{plug_in}", "evil.py": trap, "a.py": UNUSED}
        review = linting.review(a_push(head=repository.commit(files)), *linter)
        assert not touched.exists()
        assert "a.py" in paths(review)  # and it hides no finding

    @pytest.mark.parametrize("name", ["flake8.py", "ast.py", "sitecustomize.py", "pycodestyle.py"])
    def test_is_not_imported_as_a_module_of_the_linter(
        self, linting: LinterRuns, repository: Repository, touched: Path, name: str
    ) -> None:
        trap = f"import pathlib\npathlib.Path({str(touched)!r}).touch()\n"
        head = repository.commit({name: trap, "a.py": UNUSED})
        review = linting.review(a_push(head=head), sys.executable, "-m", "flake8")
        assert not touched.exists()
        assert "a.py" in paths(review)


class TestConfigurationOfTheCommit:
    @pytest.mark.parametrize("name", ["ruff.toml", ".ruff.toml"])
    def test_writes_no_file_and_hides_no_finding(
        self, linting: LinterRuns, repository: Repository, touched: Path, name: str
    ) -> None:
        orders = f'cache-dir = "{touched}"\nfix = true\nexclude = ["*"]\nforce-exclude = true\n'
        head = repository.commit({name: f"{orders}lint.ignore = ['F401']\n", "a.py": UNUSED})
        review = linting.review(a_push(head=head), *RUFF)
        assert not touched.exists()
        assert paths(review) == ["a.py"]
        assert review.verdict is Verdict.REQUEST_CHANGES

    def test_has_no_effect_beside_the_operators_configuration(
        self, linting: LinterRuns, repository: Repository, tmp_path: Path
    ) -> None:
        (tmp_path / "own.toml").write_text('lint.select = ["E711"]\n')
        orders = 'fix = true\nlint.select = ["F401"]\n'
        none = "def f(x):\n    return x == None\n"
        head = repository.commit({"ruff.toml": orders, "a.py": UNUSED, "b.py": none})
        review = linting.review(a_push(head=head), *RUFF, "--config", f"{tmp_path}/own.toml")
        assert paths(review) == ["b.py"]

    @pytest.mark.parametrize(
        "attribute", ["working-tree-encoding=UTF-16", "filter=hide", "ident", "export-ignore"]
    )
    def test_of_git_does_not_change_the_checked_content(
        self, linting: LinterRuns, repository: Repository, attribute: str
    ) -> None:
        """A file in another encoding would look empty to the linter."""
        before = repository.commit({"a.py": UNUSED})
        repository.git("config", "filter.hide.smudge", "cat /dev/null; true")
        repository.commit({"b.py": UNUSED})  # as UTF-8, before the attribute exists
        (repository.place / ".gitattributes").write_text(f"*.py {attribute}\n")
        repository.git("add", ".gitattributes")
        repository.git("commit", "-q", "-m", "Hide")
        head = repository.git("rev-parse", "HEAD")
        review = linting.review(a_push(head=head, before=before), "sh", "-c", _SHOWS, "sh")
        said = [comment.body for comment in review.comments]
        assert said == ["[import os]"]


_SHOWS = 'echo "$1:1:1: [$(cat "$1")]"'


class TestFileNamesOfTheCommit:
    def test_are_not_taken_for_options_or_argument_files(
        self, linting: LinterRuns, repository: Repository
    ) -> None:
        names = ["--fix.py", "@orders.py", "-n.py", "a.py", "+x.py", "!x.py"]
        files = dict.fromkeys(names, UNUSED) | {"orders.py": "--fix\n--exit-zero\n"}
        review = linting.review(a_push(head=repository.commit(files)), *RUFF)
        assert set(names) <= set(paths(review))

    @pytest.mark.parametrize("name", ["a\nb.py", "a\u202eb.py", "a\x1b[2Jb.py"])
    def test_that_cannot_be_shown_are_not_approved(
        self, linting: LinterRuns, repository: Repository, name: str
    ) -> None:
        head = repository.commit({name: UNUSED, "ok.py": ""})
        review = linting.review(a_push(head=head), *RUFF)
        assert review.verdict is Verdict.COMMENT
        assert "Not checked because of name or size: 1 file." in review.summary

    def test_do_not_lead_out_of_the_directory(
        self, linting: LinterRuns, repository: Repository
    ) -> None:
        """git does not make such commits, but its objects can be written by hand."""
        blob = repository.git("hash-object", "-w", "--stdin")
        inner = tree(repository, ("100644", "out.py", blob))
        outer = tree(repository, ("40000", "..", inner), ("100644", "a.py", blob))
        head = repository.git("commit-tree", outer, "-m", "Out")
        review = linting.review(a_push(head=head), *RUFF)
        assert review.verdict is Verdict.COMMENT
        assert list(linting.temporary.iterdir()) == []

    def test_of_a_huge_file_is_not_checked_and_not_approved(
        self, linting: LinterRuns, repository: Repository
    ) -> None:
        head = repository.commit({"huge.py": "#" * (LARGEST_FILE + 1), "ok.py": ""})
        review = linting.review(a_push(head=head), *RUFF)
        assert review.verdict is Verdict.COMMENT
        assert "size: 1 file." in review.summary


def tree(repository: Repository, *entries: tuple[str, str, str]) -> str:
    """A tree that no git command would make, of (mode, name, object)."""
    data = b"".join(
        f"{mode} {name}\0".encode() + bytes.fromhex(object) for mode, name, object in entries
    )
    made = ["git", "-C", repository.place, "hash-object", "-w", "-t", "tree", "--literally"]
    ran = subprocess.run([*made, "--stdin"], input=data, capture_output=True, check=True)
    return ran.stdout.decode().strip()


class TestALinterThatMayRunCodeOfTheCommit:
    @pytest.mark.parametrize("linter", ["pylint", "eslint", "sh", "towpath-no-such-linter"])
    def test_is_refused_unless_the_operator_allows_it(
        self, linting: LinterRuns, repository: Repository, linter: str
    ) -> None:
        command = [word for word in linting.command(linter) if word != "--trust-commits"]
        ran = subprocess.run(command, input=b"", capture_output=True, check=False)
        assert ran.returncode == os.EX_USAGE
        assert b"--trust-commits" in ran.stderr

    @pytest.mark.parametrize(
        ("command", "run"),
        [
            ("ruff check -q", "ruff check --isolated --no-cache --no-fix -q"),
            ("ruff check --isolated", "ruff check --no-cache --no-fix --isolated"),
            (
                "ruff check --config line-length=80",
                "ruff check --isolated --no-cache --no-fix --config line-length=80",
            ),
            (
                "ruff check --config=/etc/ruff.toml",
                "ruff check --no-cache --no-fix --config=/etc/ruff.toml",
            ),
            ("/bin/flake8", "/bin/flake8 --isolated"),
            ("flake8 --config /etc/flake8", "flake8 --config /etc/flake8"),
            ("python3 -m flake8", "python3 -P -m flake8 --isolated"),
            ("mypy", "mypy --config-file= --cache-dir=/dev/null"),
        ],
    )
    def test_known_linters_get_options_that_ignore_the_commits_configuration(
        self, command: str, run: str
    ) -> None:
        assert isolated(command.split()) == run.split()

    @pytest.mark.parametrize(
        "command",
        [
            "ruff format",
            "ruff",
            "ruff check --config own.toml",
            "flake8 --config=.flake8",
            "python -m",
        ],
    )
    def test_a_configuration_file_of_the_commit_is_refused(self, command: str) -> None:
        with pytest.raises(NotIsolated):
            isolated(command.split())
