"""Texts written by strangers: the patterns that they must match, and how to show them safely.

Anybody who may open a pull request chooses titles, branches and paths. A path that matches here
can't leave its directory, and a URL that matches contains no password. A branch may have any name
that git allows (with a leading hyphen, direction marks, quotes, `$` or `;`); otherwise a branch's
name could keep its commits from being reviewed. Such names are cleaned where they are shown, git
gets them after `refs/heads/`, and none of these texts goes through a shell.
"""

from __future__ import annotations

import re

REF_MOST = 4096
"""In bytes. No file system allows longer paths, and git stores branches as files."""
REPOSITORY_MOST = 255
PATH_MOST = 1024
URL_MOST = 2000
NO_COMMIT = frozenset({"0" * 40, "0" * 64})
"""What forges send as the commit before a new branch, and after a deleted one."""

_CONTROL = "\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff"
_TURNING = "\u200e\u200f\u202a-\u202e\u2066-\u2069"
"""Direction marks, which can make a text look like another one."""

_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200d\u2060-\u2065\u206a-\u206f"
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff]"
)
"""Unicode's default ignorable characters except direction marks: zero-width spaces and joiners,
soft hyphens, fillers, tags, variation selectors. Language models read them, people don't see them.
"""

_SHA = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_SEGMENT = r"(?!\.{1,2}(?:/|\Z))(?!(?i:[^/]*\.git)(?:/|\Z))[A-Za-z0-9_.][A-Za-z0-9_.-]*"
_REPOSITORY = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT})+")
# The rules of git-check-ref-format(1) for `refs/heads/…`. Lone surrogates can't be encoded.
_REF_WRONG = re.compile(
    r"[\x00-\x20\x7f\ud800-\udfff~^:?*\[\\]|\.\.|@\{|//|/\.|\A[/.]|[/.]\Z|\.lock(?:/|\Z)"
)
_PATH_WRONG = re.compile(rf"[{_CONTROL}{_TURNING}]|(?:\A|/)\.{{0,2}}(?:/|\Z)")
_URL = re.compile(
    r"https?://(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?"
    rf"(?:[/?#][^\s{_CONTROL}{_TURNING}\"<>\\`]*)?"
)
_HIDDEN = re.compile(rf"[{_CONTROL}{_TURNING}]")
_HIDDEN_IN_PROSE = re.compile(rf"(?![\n\t])[{_CONTROL}{_TURNING}]")


def is_commit(text: str) -> bool:
    """Whether *text* is a full commit id, SHA-1 or SHA-256, and not all zeros."""
    return _SHA.fullmatch(text) is not None and text not in NO_COMMIT


def is_repository(text: str) -> bool:
    """Whether *text* is `owner/name`, or with groups, of parts that are safe as directory names."""
    return len(text) <= REPOSITORY_MOST and _REPOSITORY.fullmatch(text) is not None


def is_branch(text: str) -> bool:
    """Whether git allows *text* as a branch's name, without `refs/heads/`."""
    short = 0 < len(text) <= REF_MOST
    return short and _REF_WRONG.search(text) is None and len(text.encode()) <= REF_MOST


def is_path(text: str) -> bool:
    """Whether *text* is a file's path inside its repository: relative, without `..`."""
    return len(text) <= PATH_MOST and _PATH_WRONG.search(text) is None


def is_url(text: str) -> bool:
    """Whether *text* is an http or https URL without user and password."""
    return len(text) <= URL_MOST and _URL.fullmatch(text) is not None


def is_plain(text: str) -> bool:
    """Whether *text* has no control characters and no direction marks."""
    return _HIDDEN.search(text) is None


def without_invisible(text: str) -> str:
    """Return *text* without invisible characters. Emoji that are joined from several come apart."""
    return _INVISIBLE.sub("", text)


def one_line(text: str, *, most: int) -> str:
    """Return the first *most* characters of *text* as one line without hidden characters."""
    return _HIDDEN.sub(" ", text[:most]).strip()


def prose(text: str) -> str:
    """Return *text* with lines and tabs, without hidden characters and outer blank lines."""
    return _HIDDEN_IN_PROSE.sub("", text).rstrip().lstrip("\n")
