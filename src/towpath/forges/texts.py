"""Texts of strangers: the patterns they must fit, and how they are made harmless to show.

Titles, branches and paths come from whoever may open a pull request. What fits a pattern here is
no way out of a directory and no address with a password in it. A branch may have whatever git
allows, or a name could keep its commits from being reviewed: a hyphen in front, marks that turn the
direction of a text, quotes, `$` and `;`. It is made harmless where it is shown, git gets it behind
`refs/heads/`, and nothing of this ever goes through a shell.
"""

from __future__ import annotations

import re

REF_MOST = 4096
"""Bytes: no file system takes a longer path, and git keeps branches as files."""
REPOSITORY_MOST = 255
PATH_MOST = 1024
URL_MOST = 2000
NO_COMMIT = frozenset({"0" * 40, "0" * 64})
"""What forges call the commit before a branch's first one, and after its last."""

_CONTROL = "\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff"
_TURNING = "\u200e\u200f\u202a-\u202e\u2066-\u2069"
"""Marks of direction, which let a text look like another."""

_INVISIBLE = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200d\u2060-\u2065\u206a-\u206f"
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff]"
)
"""What Unicode calls default ignorable, apart from marks of direction: zero-width spaces and
joiners, soft hyphens, fillers, tags, variation selectors. Models read them, people don't see them.
"""

_SHA = re.compile(r"[0-9a-f]{40}(?:[0-9a-f]{24})?")
_SEGMENT = r"(?!\.{1,2}(?:/|\Z))(?!(?i:[^/]*\.git)(?:/|\Z))[A-Za-z0-9_.][A-Za-z0-9_.-]*"
_REPOSITORY = re.compile(rf"{_SEGMENT}(?:/{_SEGMENT})+")
# git-check-ref-format(1) of `refs/heads/…`. Half a surrogate pair is no text.
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
    """A whole commit id, SHA-1 or SHA-256, of a commit that there is."""
    return _SHA.fullmatch(text) is not None and text not in NO_COMMIT


def is_repository(text: str) -> bool:
    """`owner/name`, or with groups between: parts that are safe as names of directories."""
    return len(text) <= REPOSITORY_MOST and _REPOSITORY.fullmatch(text) is not None


def is_branch(text: str) -> bool:
    """A branch's name as git allows it, without `refs/heads/`."""
    short = 0 < len(text) <= REF_MOST
    return short and _REF_WRONG.search(text) is None and len(text.encode()) <= REF_MOST


def is_path(text: str) -> bool:
    """A file's path inside its repository: relative, and never up."""
    return len(text) <= PATH_MOST and _PATH_WRONG.search(text) is None


def is_url(text: str) -> bool:
    """An http or https address without user and password."""
    return len(text) <= URL_MOST and _URL.fullmatch(text) is not None


def is_plain(text: str) -> bool:
    """Whether all of *text* can be seen."""
    return _HIDDEN.search(text) is None


def without_invisible(text: str) -> str:
    """*text* without characters that are not shown. Emoji that are joined of several come apart."""
    return _INVISIBLE.sub("", text)


def one_line(text: str, *, most: int) -> str:
    """The beginning of *text* as one line that shows all there is of it."""
    return _HIDDEN.sub(" ", text[:most]).strip()


def prose(text: str) -> str:
    """*text* with its lines and tabs, without what can't be seen and blank lines around it."""
    return _HIDDEN_IN_PROSE.sub("", text).rstrip().lstrip("\n")
