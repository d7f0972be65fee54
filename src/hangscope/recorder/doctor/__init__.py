"""What would happen here if a collective hung now, as findings."""
