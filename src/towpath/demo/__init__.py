"""`towpath demo`: five applications under load, a worker and the store killed, all counted."""
