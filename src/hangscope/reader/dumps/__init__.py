"""Flight recorder dumps: bytes of one file in, columns of one rank out. Nothing in a dump is trusted."""
