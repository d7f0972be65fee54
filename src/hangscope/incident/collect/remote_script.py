"""What is run on a remote node: plain sh, with tar alone, and stat, wc or cksum only where they exist."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from hangscope.safeio import limits

BEGIN = "HANGSCOPE-BEGIN"
END = "HANGSCOPE-END"
TAR = "HANGSCOPE-TAR"

DEFAULT_PATTERNS = (
    "/tmp/nccl_trace_rank_*",  # torch 2.2 to 2.6
    "~/.cache/torch/nccl_trace_rank_*",  # 2.7 and 2.8
    "/tmp/.cache/torch/nccl_trace_rank_*",  # the same without HOME
    "~/.cache/torch/comm_lib_trace_rank_*",  # 2.9 on
    "/tmp/.cache/torch/comm_lib_trace_rank_*",
    "$XDG_CACHE_HOME/torch/comm_lib_trace_rank_*",  # 2.11 on
    "$TORCH_FR_DUMP_TEMP_FILE*",
    "$TORCH_NCCL_DEBUG_INFO_TEMP_FILE*",
    "/tmp/hccl_trace_rank_*",  # torch_npu
    "$TORCH_HCCL_DEBUG_INFO_TEMP_FILE*",
    "$HANGSCOPE_BLACKBOX_DIR/*.ncclbb",
)
"""Where PyTorch leaves dumps when nobody says otherwise, in every version, and where variables say; and black boxes."""

INCIDENT_PATTERNS = ("hangscope/*/*", "~/hangscope/*/*", "/hangscope")
"""Where `hangscope run` keeps incidents: below the directory it was started in, or in a container's volume."""

_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
_GLOB = re.compile(r"[*?]|\[[!^]?[A-Za-z0-9_.,-]+\]")
"""Only this reaches a shell without quotes: no sign in it means anything to a shell but a pattern."""

_PRELUDE = r"""
LC_ALL=C; export LC_ALL; unset CDPATH; set +e
nl='
'
count=0
tag=G
named=0
if stat -L -c '%s %Y' / >/dev/null 2>&1; then how=gnu
elif stat -L -f '%z %m' / >/dev/null 2>&1; then how=bsd
elif command -v cksum >/dev/null 2>&1; then how=cksum
else how=none; fi
emit() {
  case $1 in *"$nl"*) printf 'S %s\n' 'a name with a line break in it'; return;; esac
  if [ -L "$1" ]; then printf 'S %s\n' "$1: a link, not followed"; return; fi
  if [ ! -r "$1" ]; then printf 'S %s\n' "$1: no permission to read it"; return; fi
  count=$((count+1))
  case $how in
    gnu) facts=$(stat -c '%s %Y -' "$1" 2>/dev/null) ;;
    bsd) facts=$(stat -f '%z %m -' "$1" 2>/dev/null) ;;
    cksum) facts=$(cksum <"$1" 2>/dev/null); facts="${facts#* } - ${facts%% *}" ;;
    *) facts='- - -' ;;
  esac
  [ -n "$facts" ] && printf '%s %s %s\n' "$tag" "$facts" "$1"
}
walk() {
  for one in "$1"/* "$1"/.[!.]*; do
    if [ "$count" -ge MOST ]; then return; fi
    if [ -f "$one" ]; then emit "$one"
    elif [ -L "$one" ]; then case $one in *'/*'|*'/.[!.]*') ;; *) printf 'S %s\n' "$one: a link, not followed";; esac
    elif [ -d "$one" ]; then
      if [ -r "$one" ] && [ -x "$one" ]; then ( walk "$one" )
      else printf 'S %s\n' "$one: a directory that cannot be read"; fi
    elif [ -p "$one" ] || [ -S "$one" ]; then printf 'S %s\n' "$one: a pipe or a socket, not a file"; fi
  done
}
visit() {
  for found in "$@"; do
    case $found in /dev/shm/*) ;; /dev/*) continue;; /*) ;; *) found=${PWD%/}/$found;; esac
    if [ -L "$found" ] && [ "$named" != 1 ]; then printf 'S %s\n' "$found: a link, not followed"; continue; fi
    if [ -f "$found" ]; then emit "$found"; elif [ -d "$found" ]; then walk "$found"; fi
  done
}
""".replace("MOST", str(limits.NODE_FILES))

_NCCL_DEBUG_FILE = r"""
n=${NCCL_DEBUG_FILE:-}
while :; do case $n in *%[hp]*) n="${n%%%[hp]*}*${n#*%[hp]}";; *) break;; esac; done
[ -n "$n" ] && { IFS=; visit $n; unset IFS; }
"""


def list_script(patterns: Iterable[str], *, defaults: bool = True) -> str:
    """A script that prints a line for every file: `tag size mtime checksum path`, with - for what is not known.

    The tag says how it was found: G given, D default, I an incident.
    """
    lines = [_PRELUDE, f"echo; echo {BEGIN}", "tag=G", *(_visit(pattern) for pattern in patterns)]
    if defaults:
        lines += ["tag=D", *(_visit(pattern) for pattern in DEFAULT_PATTERNS), _NCCL_DEBUG_FILE]
        lines += ["tag=I", *(_visit(pattern) for pattern in INCIDENT_PATTERNS)]
    lines.append(f"echo {END}")
    return "\n".join(lines) + "\n"


def fetch_script(folders: Sequence[tuple[str, Sequence[str]]]) -> str:
    """A script that writes a tar of some files of each directory to its output, each behind a line with its number.

    Between the listing and now a directory may have been exchanged for a link. The shell goes into each, which holds
    it, and asks the kernel where that is: where its name leads along links of this user's and root's alone, or nothing
    of it is given."""
    lines = [_GIVE, f"echo; echo {BEGIN}"]
    for number, (folder, names) in enumerate(folders):
        given = " ".join(quote(f"./{name}") for name in names)
        lines.append(f"give {number} {quote(folder.strip('/'))} {given}")
    return "\n".join(lines) + "\n"


_GIVE = rf"""
LC_ALL=C; export LC_ALL; unset CDPATH; set +e
me=$(id -u)
enter() {{
  cd / && cd -P "./$1" 2>/dev/null || return 1
  here=$(pwd -P); way=; left=$1
  while [ -n "$left" ]; do
    way=$way/${{left%%/*}}
    case $left in */*) left=${{left#*/}};; *) left=;; esac
    if [ -L "$way" ]; then
      owner=$(ls -ldn "$way" 2>/dev/null | {{ read -r _ _ owner _; echo "$owner"; }})
      case $owner in 0|"$me") ;; *) return 1;; esac
      way=$(cd -P "$way" 2>/dev/null && pwd -P) || return 1
      way=${{way%/}}
    fi
  done
  [ "${{here%/}}" = "$way" ]
}}
give() {{
  number=$1; folder=$2; shift 2
  if enter "$folder"; then echo; echo "{TAR} $number"; tar -c -f - "$@"
  else echo "$folder: not the directory that was listed" >&2; fi
}}
"""


def quote(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _visit(pattern: str) -> str:
    """`visit` with a pattern in which only *, ?, [] and variables mean something."""
    needed: list[str] = []
    words: list[str] = []
    if pattern == "~" or pattern.startswith("~/"):
        pattern = "$HOME" + pattern[1:]
    position = 0
    marks = sorted([*_VARIABLE.finditer(pattern), *_GLOB.finditer(pattern)], key=lambda mark: mark.start())
    for mark in marks:
        if mark.start() < position:
            continue
        if mark.start() > position:
            words.append(quote(pattern[position : mark.start()]))
        if mark.group().startswith("$"):
            name = mark[1] or mark[2]
            needed.append(name)
            words.append(f'"${{{name}}}"')
        else:
            words.append(mark.group())
        position = mark.end()
    if position < len(pattern):
        words.append(quote(pattern[position:]))
    # A directory that somebody named without a pattern may be a link, by their own word. What a pattern finds may not.
    named = 0 if any(not mark.group().startswith("$") for mark in marks) else 1
    conditions = "".join(f'[ -n "${{{name}:-}}" ] && ' for name in dict.fromkeys(needed))
    return f"named={named}; {conditions}visit {''.join(words)}"
