"""Jobs whose record is a row: made, queued by the relay, begun and ended."""
