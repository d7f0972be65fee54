"""A fleet for weeks: jobs over nodes, one thing that is bad, plain bad luck, verdicts that are not always right."""
