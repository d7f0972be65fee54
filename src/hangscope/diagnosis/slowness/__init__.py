"""Which rank is slow by itself, in a job that does not hang."""
