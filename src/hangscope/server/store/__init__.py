"""What the server keeps: tables with their migrations, blobs by checksum, the queue and tokens."""
