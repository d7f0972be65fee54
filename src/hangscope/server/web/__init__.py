"""What the server answers: the API for agents and programs, the pages for people, metrics, feed and webhooks."""
