"""Where a hang is announced besides the terminal: a Slack channel, a webhook, the W&B run of the job.

Nothing here may delay the job, the evidence or the verdict: what goes over a network does so in a process of its own.
"""
