"""Taking secrets, user names and, on request, host names, addresses and paths out of evidence.

`redact_file` does it to one file of any kind, with `rewrite_pickle` for dumps. `find_secrets` finds what to replace in
text, in views that `plain_view` and `log_prefixes` give of it; `scan` says where to look, `needle_handlers` look there:
for a form (`secret_forms`), a name (`assignments`), a structure (`structure`), randomness (`random_words`) or a user
(`user_names`). `learn_names` finds users and hosts beforehand.
"""
