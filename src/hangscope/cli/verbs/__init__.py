"""One thin file a verb, each with a click command named `command`."""
