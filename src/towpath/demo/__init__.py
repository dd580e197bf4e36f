"""`towpath demo`: runs five applications under load, kills a worker and Redis, counts results."""
