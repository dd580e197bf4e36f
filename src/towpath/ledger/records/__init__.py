"""Records: jobs whose row in the database is the truth, and the relay that queues them in Redis."""
