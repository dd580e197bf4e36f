"""GitHub and GitLab: webhooks checked and read, API clients. Knows no application."""
