"""The run of events: every rank's program executed with the fault in it, and who waits for which ranks at the end."""
