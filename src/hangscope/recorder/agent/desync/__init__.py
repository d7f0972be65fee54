"""Whether the ranks of a job that runs have come apart, by looks at their recordings."""
