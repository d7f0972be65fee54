"""How much of a stranger's input is believed: every limit on files, trees, archives, JSON, and what nodes send.

Nothing in an input decides how much memory, time or disk it costs. Each limit holds every real input that we know of,
with room; what goes beyond is left out, and said. How many rows one format may have (ranks of a roster, ports of a
node) is written beside the reader of that format.
"""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

# ---- one file --------------------------------------------------------------------------------------------------------

START_BYTES = 512
"""The first bytes of a file, which are kept of each: a pickle, gzip and a tar are known by them."""
HEAD_BYTES = 64 * KIB
"""So much of a file is looked at to tell what it is, and whether it holds evidence."""
OPEN_FILES = 192
"""A file stays open between the look at its first bytes and the reading while its handle's number is below this: a
process has 1,024 handles in most places and 256 in some. What comes after so many is opened a second time."""
LINKS = 40
"""Links in a row that are followed: as many as Linux does. Somebody may tie a loop while we look."""

# ---- JSON ------------------------------------------------------------------------------------------------------------

JSON_BYTES = 64 * MIB
"""A file that begins like JSON and is larger is no roster, answer or file of ours; it may be a log."""
JSON_MEMORY = 160 * MIB
"""What parsed JSON may take. Three bytes, ``[],``, become sixty-four in memory: a file of sixty megabytes would take
gigabytes."""
JSON_DIGITS = 1000
"""Of one number. Python before 3.10.7 turns a million digits into an int without complaint, and takes minutes."""

# ---- a tree of files -------------------------------------------------------------------------------------------------

TREE_FILES = 250_000
"""Files of one tree: a job of some 30,000 ranks. Listing more takes minutes."""
DIRECTORY_NAMES = 100_000
"""Names of one directory that is listed without what is below: nodes of a run, runs of a place."""
TREE_LEVELS = 100
"""Directories below each other: evidence lies ten deep at most, and a path has 4,096 bytes."""
TREE_SKIPPED = 1000
"""So many things that were skipped for one reason are named one by one; the rest is counted."""
TAKEN_UNSEEN = 2_000
"""So many files of a tree are taken whatever they hold; of a tree with more, those that hold evidence: a data set or a
cache of a hundred thousand files beside the evidence is not worth anybody's minutes."""

# ---- archives --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ArchiveLimits:
    """What one archive may hold, with everything in it, whoever opens it. The defaults fit a job of 30,000 ranks."""

    members: int = 250_000
    member_bytes: int = 16 * GIB
    """Of one member that is written to a disk as it comes: no log or dump is larger."""
    memory_bytes: int = 160 * MIB
    """Of one member that is read where it lies, in memory."""
    total_bytes: int = 64 * GIB
    free_bytes: int = 64 * MIB
    ratio: int = 150
    """An archive of n bytes may unpack to `free_bytes` plus n times this, all layers together. Evidence packs some ten
    times, log spam some fifty times; a file of zeros hundreds of times."""
    depth: int = 5
    """Layers of packing: a compressed dump in a node's tar.gz in the job's tar is four."""
    refusals: int = 1000
    """Members that are refused one by one, with the reason."""


ARCHIVE = ArchiveLimits()

ARCHIVE_FREE_MEMBERS = 16_384
ARCHIVE_MEMBER_BYTES = 256
"""All archives of a command may have so many members, and one more for so many of their own bytes: of real evidence a
file takes more, packed, and three hundred thousand empty ones, with names that count, take eight bytes each."""
ARCHIVE_HELD_BYTES = 64 * MIB
"""Members of archives that wait in memory until it is known which incident is the newest; beyond, they are read as they
come, so that no archive is ever decompressed twice."""
ARCHIVE_FREE_LINES = 100_000
ARCHIVE_LINES = 300_000
"""Lines in all archives of a command that are read one by one: so many, and more for each mebibyte of their own bytes.
Logs of NCCL pack thirty times, at a hundred bytes a line; a bomb packs hundreds of times, and takes minutes."""
TAR_HEADER_BYTES = 64 * KIB
"""Of an extension header: it holds a name."""
GZIP_STREAM_BYTES = 16 * KIB
"""What another compressed stream in the same file counts as unpacked, though it may hold nothing: to start it costs."""
MEMBER_NAME = 1024
MEMBER_NAME_PART = 255
MEMBER_NAME_PARTS = 64
"""Of a name that is made on a disk, in characters, in bytes of one part, and in parts: what every file system takes."""
SHOWN_NAME = 4096
"""Of a name that is only shown: PATH_MAX."""

# ---- manifests -------------------------------------------------------------------------------------------------------

MANIFEST_BYTES = 256 * MIB
"""100,000 ranks with ten files each make about 200 MB of manifest; more is not a manifest."""
MANIFEST_GAPS = 20_000
"""Each is shown and written again: more than this nobody reads."""
MANIFEST_EXTRA = 1 * MIB
"""Of fields that this version does not know, which are handed on."""
MANIFEST_FILES = 200_000
"""Files that a manifest in an archive lists and that are compared with what is there."""

# ---- what nodes and directories send to `collect` --------------------------------------------------------------------

NODE_BYTES = 64 * GIB
"""What one source may send in all."""
NODE_FILES = 20_000
"""A pattern that matches more than this on one node is a mistake, such as a whole disk."""
NODE_LISTING_BYTES = 32 * MIB
"""The list of those files, with names of some hundred bytes."""
NODE_GREETING_BYTES = 256 * KIB
"""What a node's shell prints before our script's first word."""
NODE_STDERR_BYTES = 2000
"""Of what a command said at last, which is quoted where it failed."""
LISTED_BYTES = 1 << 44
LISTED_TIME = 1 << 33
"""A size, and a time in seconds (the year 2242), beyond which nothing that a source says is believed."""
DESCRIPTIONS_BYTES = 64 * MIB
"""All manifests of one source, which are read before anything is chosen: what is larger takes more memory than is given
to read one."""
HOSTS = 100_000
HOSTFILE_BYTES = 16 * MIB
"""Hosts on one command line, and a file of their names: no cluster has more."""
SHIPPED_ARCHIVE_BYTES = 256 * MIB
"""An archive that lies on one node of a Ray cluster is opened where all is joined: up to this size it travels there."""

# ---- dumps -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds for one dump. The defaults hold every real dump: a ring of 2,000,000 entries is about 400 MB on disk."""

    input_bytes: int = 1024 * MIB
    memory_bytes: int = 256 * MIB
    """Estimated memory of the objects that a file may hold at one time: bounds containers, objects and strings."""
    growth: int = 40
    """The same, for each byte of the file: a real dump needs up to 35, a crafted one can ask for more than 100."""
    nesting: int = 64
    memo: int = 4_000_000
    string_bytes: int = 4 * MIB
    integer_bytes: int = 32
    visits: int = 2_000_000
    """List items that may be visited beyond one per byte of the file: shared lists must not multiply the work."""
    problems: int = 50
    """Bad entries reported one by one; the rest is counted."""


DEFAULT = Limits()

MOST_GROUPS = 5000
"""Groups of one process. Real ones have some dozens."""
