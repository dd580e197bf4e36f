"""`towpath secret`: each receiver gets the secret of its own kind of calls, and no other."""

from tests.cli.command import Command
from towpath.apps.messages.options import CALLBACK, PUSH
from towpath.calls.signature import OUTBOX, derive_secret, new_secret


def test_secrets_are_derived_from_the_settings_one_per_line(towpath: Command) -> None:
    secrets = [new_secret(), new_secret()]
    towpath.env["TOWPATH_CALLS__SECRETS"] = ",".join(secrets)
    ran = towpath("secret", "callback")
    assert ran.code == 0, ran.err
    assert ran.out.split() == [derive_secret(secret, CALLBACK) for secret in secrets]
    told = towpath("secret", "outbox", "--json").objects
    assert [row["secret"] for row in told] == [derive_secret(secret, OUTBOX) for secret in secrets]


def test_a_secret_is_derived_from_the_one_that_up_made(towpath: Command) -> None:
    secret = new_secret()
    data = towpath.directory / "towpath-data"
    data.mkdir()
    (data / "signing.secret").write_text(secret + "\n")
    assert towpath("secret", "push").out.split() == [derive_secret(secret, PUSH)]


def test_a_secret_of_an_unknown_kind_is_refused(towpath: Command) -> None:
    secret = towpath.env["TOWPATH_CALLS__SECRETS"] = new_secret()
    ran = towpath("secret", "mail")
    assert ran.code == 2
    assert "outbox, push, callback, reviewer" in ran.err
    assert secret not in ran.err


def test_a_missing_signing_secret_is_refused_with_its_variable(towpath: Command) -> None:
    ran = towpath("secret", "push")
    assert ran.code == 2
    assert "TOWPATH_CALLS__SECRETS" in ran.err
