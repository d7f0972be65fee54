"""Flight recorder dumps: the bytes of one file in, the columns of one rank (`raw_dump`) out. Nothing here is trusted.

`dump_file` has a dump decoded (`native_decoder` in C, or `pickle_machine` or `json_dumps` with `entries`), reads its
`header`, makes all versions and backends mean the same (`normalise`), and keeps what is needed (`ring_history`).
"""
