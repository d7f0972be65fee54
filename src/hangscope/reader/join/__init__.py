"""From what single files say to one job: whose file it is, who is who, which groups and operations are the same."""
