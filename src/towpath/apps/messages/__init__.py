"""Messages: each user's messages are processed in order, one at a time."""

from towpath.apps.application import Application
from towpath.apps.messages.options import CALLBACK, PUSH, MessagesOptions
from towpath.ledger.keys.raw import WORK_VERBS

APPLICATION = Application(
    name="messages",
    options=MessagesOptions,
    queues="towpath.apps.messages.model:QUEUES",
    raw={"messages": WORK_VERBS},
    service="towpath.apps.messages.service:serving",
    handlers="towpath.apps.messages.adapters:MessagesConsumers",
    purposes=(PUSH, CALLBACK),
    http="towpath.apps.messages.http:ROUTES",
    pages="towpath.apps.messages.pages:PAGES",
)
