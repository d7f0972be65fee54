"""Where evidence comes from: one folder for each kind, a slice, with all that is known of it.

    schema.py    what lies on disk, for who writes and who reads: FOLDER, and the kind that a bundle gives up together
    settings.py  what must be set for it, and `check`, which doctor asks
    capture.py   `save`, which a capture of a node calls: in its time, whatever fails; or `begin`, for what is saved of
                 each sample of each rank; standard library, `processes` and `safeio` alone
    read.py      `recognise` and `read` of a file's bytes, or `recognise_object` and `read_object` of a JSON object:
                 from content to model values; `read_file` where a file is large or still written. `join` puts all files
                 together once it is known who is who, `statements` helps to find that out. What reads may import the
                 model, which nothing else here reaches

Each file is found by being there (`slices`): whoever captures, reads, bundles or examines walks over the slices and
names none. A slice has the files that it needs. `flight_recorder/`, `process_waits/` and `stacks` look at a live
process without touching it; what a process holds is its own word, so each size, count and address is bounded.
"""
