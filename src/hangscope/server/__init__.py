"""The fleet's memory: incidents and rosters of many jobs, kept, grouped and shown (extra `serve`).

`intake/` accepts what agents push, `digest/` diagnoses and groups it afterwards, `history/` asks whether a machine or
the code is at fault, `web/` is the API and the pages, `store/` the database and the blobs below all of them.
"""
