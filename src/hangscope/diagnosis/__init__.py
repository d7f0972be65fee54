"""From a job to a verdict: align, waits, one file a rule, verdict. Rules are plain functions; nothing here does I/O."""
