"""Taking secrets, user names and, on request, host names, addresses and paths out of evidence.

`patterns` says what a secret looks like, `secrets` replaces them in text, `aliases` gives stable names to hosts,
addresses and paths, `pickles` rewrites strings inside dumps, `files` does all of it to one file of any kind.
"""
