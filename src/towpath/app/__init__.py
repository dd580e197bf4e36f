"""What a Python user writes: an app, its handlers and jobs, and the backend they share."""
