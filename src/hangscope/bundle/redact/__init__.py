"""Taking secrets, user names and, on request, host names, addresses and paths out of evidence.

`patterns` and `names` say what a secret looks like, `structure` and `random_words` what is one by its place or letters,
`view` undoes encodings, `handlers` look at one place, `secrets` replaces in text, `skim` passes over lines that were
clean before, `learn` finds users and hosts, `aliases` gives hosts, addresses and paths stable names, `pickles` rewrites
strings inside dumps, `files` does all of it to one file of any kind.
"""
