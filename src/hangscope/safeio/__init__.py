"""Everything that touches a stranger's file: opening, walking, archives, JSON, with one set of limits.

`safe_files` opens and writes, `walk` lists a tree by the names in `evidence_names`; `gzip_stream`, `tar_stream`,
`zip_members` and `open_archive` read what is packed, `member_names` guards what is unpacked; `bounded_json` parses;
`limits` bounds them all. Standard library only: it also runs in training images.
"""
