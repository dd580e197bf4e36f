"""BullMQ on Node: the head of `bullmq_row.cjs`, which is its handler and its producer."""

LABEL = "BullMQ (Node)"
ENVIRONMENT = "bullmq"
REQUIRES = ("bullmq@6.7.0", "ioredis@6.0.0")
SETTINGS = "concurrency 100, removeOnComplete"
WORKER = "node benchmarks/peers/rows/bullmq_row.cjs work"
PRODUCER = "node benchmarks/peers/rows/bullmq_row.cjs produce"
ASYNCIO = True
BULK = "addBulk, 500 at once"
DEFAULTS = "node benchmarks/peers/rows/bullmq_row.cjs work"
