"""File systems of many nodes: Lustre, NFS, Ceph, BeeGFS, GPFS. A server that answers again takes its failure back."""

from __future__ import annotations

from hangscope.failure_kinds import FailureKind
from hangscope.wordings.wording import Wording

ROWS: tuple[Wording, ...] = (
    Wording(
        FailureKind.STORAGE_LOST,
        r"nfs: server (?P<peer_node>[\w.:-]{1,255}) not responding, (?P<what>still trying|timed out)",
        ("not responding, still", "not responding, timed"),
        "[ 3223.539141] nfs: server nas-1 not responding, still trying",
        "Linux 3-6; 2010-2026",
        library="NFS",
        detail="the NFS server {peer_node}",
        effect=True,
        explains=True,
        warns=True,
        kernel=True,
        page="nfs-server-not-responding",
    ),
    Wording(
        None,
        r"nfs: server (?P<peer_node>[\w.:-]{1,255}) OK",
        ("nfs: server",),
        "[ 3224.612015] nfs: server nas-1 OK",
        "Linux 3-6; 2010-2026",
        library="NFS",
        recovers=True,
        kernel=True,
    ),
    Wording(
        FailureKind.STORAGE_LOST,
        r"Lustre(?:Error)?: .{0,120}?Connection to (?P<what>[\w.-]{1,80}) \(at (?P<peer_node>[\w.@:-]{1,80})\) was lost",
        ("Lustre",),
        "Lustre: fs01-MDT0000-mdc-ffff88203810d800: Connection to fs01-MDT0000 (at 172.31.126.88@o2ib) was lost; in progress "
        "operations using this service will wait for recovery to complete",
        "Lustre 2.5-2.15; jade-hpc#14; 2013-2026",
        library="Lustre",
        detail="Lustre's {what} at {peer_node}",
        effect=True,
        explains=True,
        warns=True,
        kernel=True,
    ),
    Wording(
        None,
        r"Lustre: .{0,120}?Connection restored to (?P<what>[\w.-]{1,80}) \(at (?P<peer_node>[\w.@:-]{1,80})\)",
        ("Connection restored to",),
        "Lustre: fs01-MDT0000-mdc-ffff88203810d800: Connection restored to fs01-MDT0000 (at 172.31.126.88@o2ib)",
        "Lustre 2.5-2.15; 2013-2026",
        library="Lustre",
        recovers=True,
        kernel=True,
    ),
    Wording(
        FailureKind.STORAGE_LOST,
        r"Lustre(?:Error)?: .{0,160}?[Tt]his client was evicted by (?P<what>[\w.-]{1,80})",
        ("client was evicted by",),
        "LustreError: 167-0: fs01-MDT0000-mdc-ffff88203810d800: This client was evicted by fs01-MDT0000; in progress operations "
        "using this service will fail.",
        "Lustre 2.5-2.15; 2013-2026",
        library="Lustre",
        detail="Lustre's {what}, which evicted this client",
        explains=True,
        kernel=True,
    ),
    Wording(
        FailureKind.STORAGE_LOST,
        r"(?:LNet(?:Error)?|Lustre(?:Error)?): .{0,120}?(?:Timed out tx for (?P<peer_node>[\w.@-]{1,80})"
        r"|Request sent has (?P<what>timed out|failed)[^\[]{0,60}(?:\[.{0,100}?\])?\s*req@\S+ \S+ o\d+->[\w.-]+?@(?P<peer_node2>[\w.@-]{1,60}?):)",
        ("Timed out tx for", "Request sent has"),
        "LNet: 2431:0:(o2iblnd_cb.c:3174:kiblnd_check_conns()) Timed out tx for 172.31.126.87@o2ib: 403055 seconds",
        "Lustre 2.5-2.15; jade-hpc#14; 2013-2026",
        library="Lustre",
        detail="Lustre's {peer_node}",
        effect=True,
        explains=True,
        warns=True,
        kernel=True,
    ),
    Wording(
        FailureKind.STORAGE_LOST,
        r"libceph: (?P<peer_node>(?:mds|osd|mon)\d+)(?: \S+)? (?P<what>socket closed|connection reset|down|session lost, hunting|socket error)"
        r"|ceph: (?P<mds>mds\d+) (?P<what2>hung|caps stale|closed our session|reconnect denied)",
        ("libceph: ", "ceph: mds"),
        "[3677601.123718] libceph: osd12 down",
        "Linux 4-6; ceph's troubleshooting page; 2016-2026",
        library="Ceph",
        detail="Ceph's {peer_node}{mds}: {what}{what2}",
        effect=True,
        explains=True,
        warns=True,
        kernel=True,
    ),
    Wording(
        None,
        r"libceph: (?P<peer_node>(?:osd|mon)\d+)(?: \S+)? (?:up|session established)|ceph: (?P<mds>mds\d+) (?:came back|reconnect success|recovery completed)",
        ("libceph: ", "ceph: mds"),
        "[3677671.123718] libceph: osd12 up",
        "Linux 4-6; 2016-2026",
        library="Ceph",
        recovers=True,
        kernel=True,
    ),
    Wording(
        FailureKind.STORAGE_LOST,
        r"Evicting \(and blocklisting\) client session \d+ \(\S{0,20}?(?P<node>\d+\.\d+\.\d+\.\d+):\d+/\d+\)"
        r"|evicting unresponsive client (?P<node2>[\w.-]{1,255})(?::\S{0,80})? \(\d+\), after (?P<s>[\d.]+) seconds",
        ("client session", "unresponsive client"),
        "2025-04-27T10:12:45.617+0000 7f17a10a0640  1 mds.0.482 Evicting (and blocklisting) client session 977313 "
        "(v1:10.10.10.253:0/180833414)",
        "Ceph 16-19, the metadata server's log; ceph-csi#5265; 2021-2026",
        library="Ceph",
        detail="CephFS: its metadata server evicted it as a client that does not answer",
        explains=True,
    ),
    Wording(
        FailureKind.STORAGE_LOST,
        r"[Bb]ee[Gg][Ff][Ss].{0,120}?(?P<what>(?:Communication (?:timeout|error)|Retrying communication|Unable to connect|Connect failed|"
        r"Receive timed out|Connection (?:failed|interrupted|refused))\b.{0,40}?(?:node|to|on|from)?:? ?(?P<peer_node>[\w.-]+)?)",
        ("eegfs", "eeGFS"),
        "beegfs: python3(81233) [Messaging (RPC)] >> Communication error: Receive timed out from beegfs-storage storage03 "
        "[ID: 3]. Retrying communication",
        "BeeGFS 6-7; 2017-2026",
        library="BeeGFS",
        detail="BeeGFS: {what}",
        effect=True,
        explains=True,
        warns=True,
        kernel=True,
    ),
    Wording(
        FailureKind.STORAGE_LOST,
        r"mmfs(?:d|\b).{0,80}?(?P<what>Disk lease period expired|Lost membership in cluster|Lease overdue|[Ee]xpell?(?:ed|ing)|"
        r"Close connection to (?P<peer_node>[\w.]+)[^(]{0,60}\([^)]{1,60}\))",
        ("mmfs",),
        "mmfs: [N] Disk lease period expired 0.230 seconds ago in cluster gpfs.cluster. Attempting to reacquire the lease.",
        "GPFS 4-5; 2014-2026",
        library="GPFS",
        detail="GPFS: {what}",
        effect=True,
        explains=True,
        warns=True,
    ),
)
