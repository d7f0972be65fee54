"""The command line: one thin file a verb. The only place that prints, exits or reads arguments."""
