"""Reviews of pull requests and pushes, from webhooks and by request; each has a record."""

from towpath.apps.application import Application
from towpath.apps.reviews.options import REVIEWER, ReviewsOptions

APPLICATION = Application(
    name="reviews",
    options=ReviewsOptions,
    queues="towpath.apps.reviews.model:QUEUES",
    service="towpath.apps.reviews.service:serving",
    handlers="towpath.apps.reviews.adapters:ReviewsConsumers",
    purposes=(REVIEWER,),
    http="towpath.apps.reviews.http:ROUTES",
    pages="towpath.apps.reviews.pages:PAGES",
    cli="towpath.apps.reviews.cli:app",
    facts="towpath.apps.reviews.adapters:facts",
)
