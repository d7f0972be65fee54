"""What tests are made of: jobs, dumps, logs and folders, each named by what it makes."""
