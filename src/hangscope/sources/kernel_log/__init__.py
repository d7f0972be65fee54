"""The kernel's messages since the job started. They are read as any log is (`reader/logs/kernel_log.py`)."""
