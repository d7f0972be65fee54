"""Which variables a job needs for its torch and backend, and what is wrong with those that are set.

`settings` makes the plan of one job, `env_formats` writes it for other tools, `checks/` holds the rules.
"""
