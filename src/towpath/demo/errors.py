"""What can go wrong with the demo itself."""

from towpath.errors import RetryAdvice, TowpathError


class DemoFailed(TowpathError):
    """The demo could not be run to its end; that says nothing about what it was to show."""

    code = "demo_failed"
    remedy = "See the logs in the folder that `towpath demo --keep` leaves."
    retry = RetryAdvice.LATER
