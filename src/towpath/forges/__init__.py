"""GitHub and GitLab: webhooks checked and read, API clients. Knows no application."""

GITHUB, GITLAB = "https://github.com", "https://gitlab.com"
