# Slurm's TaskProlog: runs as the job's user before each task, and prints what is to be in the task's environment.
# It prints a variable only where the job has not set it, and only where the folder behind it is there. No Python, no
# shared disk; whatever fails here, the task starts as without it. A user's HANGSCOPE=off ends it.

case ${HANGSCOPE:-} in [oO][fF][fF] | 0 | [nN][oO] | [fF][aA][lL][sS][eE]) exit 0 ;; esac
case ${SLURM_JOB_ID:-} in '' | *[!0-9]*) exit 0 ;; esac
exec 2>/dev/null
set -f
PATH=/usr/bin:/bin
user=$(id -u) || exit 0
attempt=$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}
ours=
before=

# What a task before this one was given, as a batch script, comes along into its steps: it is not what the job set.
for pair in ${HANGSCOPE_PLATFORM:-}; do
    name=${pair%%=*}
    case $name in '' | [!A-Z]* | *[!A-Z0-9_]*) continue ;; esac
    if eval "[ \"\${$name-}\" = \"\${pair#*=}\" ]"; then
        before="$before $name"
        [ "$name" != HANGSCOPE_NEXT_PROFILER ] || replaced=${pair#*=}
        unset "$name"
    fi
done
[ -z "${replaced:-}" ] || [ -n "${NCCL_PROFILER_PLUGIN:-}" ] || NCCL_PROFILER_PLUGIN=$replaced

# In a container of Slurm's own or of pyxis, the folders that are made here are not there.
contained=${SLURM_CONTAINER:-}
! env | grep -q '^[A-Z_]*pyxis_container_[a-z_]*=' || contained=1

# A folder of this user alone, with the job's own below it.
private() {
    [ -z "$contained" ] && (umask 077 && mkdir -p "$1/$attempt/$2") && [ ! -L "$1" ] && [ -O "$1" ] && [ ! -L "$1/$attempt" ] &&
        [ -O "$1/$attempt/$2" ] && [ -w "$1/$attempt/$2" ]
}

# NAME VALUE, where the job has not set it.
offer() {
    if eval "[ -z \"\${$1+set}\" ]"; then
        ours="$ours $1=$2"
        echo "export $1=$2"
    fi
}

offer TORCH_FR_BUFFER_SIZE "$ENTRIES"
[ -z "$OLDER" ] || offer TORCH_NCCL_TRACE_BUFFER_SIZE "${TORCH_FR_BUFFER_SIZE:-$ENTRIES}"

disk=/tmp/hangscope-$user
if [ -z "${TORCH_FR_DUMP_TEMP_FILE+set}${TORCH_NCCL_DEBUG_INFO_TEMP_FILE+set}" ] && private "$disk" dumps; then
    dumps=$disk/$attempt/dumps/nccl_trace_rank_
    [ "$OLDER" = only ] || offer TORCH_FR_DUMP_TEMP_FILE "$dumps"
    [ -z "$OLDER" ] || offer TORCH_NCCL_DEBUG_INFO_TEMP_FILE "$dumps"
    offer TORCH_NCCL_DUMP_ON_TIMEOUT 1
fi

# Somebody who asked for NCCL's log wants to see it where it goes now. A file that cannot be made would send it to stdout.
if [ -z "${NCCL_DEBUG+set}${NCCL_DEBUG_FILE+set}${NCCL_DEBUG_SUBSYS+set}" ] && private "$disk" logs &&
    trial=$(mktemp "$disk/$attempt/logs/.trial-XXXXXX") && echo trial >"$trial"; then
    offer NCCL_DEBUG_FILE "$disk/$attempt/logs/nccl.%h.%p.log"
    offer NCCL_DEBUG "$LEVEL"
    [ "$LEVEL" = WARN ] || offer NCCL_DEBUG_SUBSYS "$SUBSYSTEMS"
    offer NCCL_DEBUG_TIMESTAMP_LEVELS ALL
    offer NCCL_DEBUG_TIMESTAMP_FORMAT "$TIMESTAMP"
fi
[ -z "${trial:-}" ] || rm -f "$trial"
offer NCCL_RAS_ADDR "localhost:$((FIRST_PORT + SLURM_JOB_ID % PORTS))"

# The black box, in front of another profiler plugin of NCCL's where there is one.
other=${NCCL_PROFILER_PLUGIN:-}
[ "$other" != "$PLUGIN" ] || other=${HANGSCOPE_NEXT_PROFILER:-}
if [ -z "$other" ]; then
    IFS=:
    for folder in ${LD_LIBRARY_PATH:-}; do
        [ -z "$folder" ] || [ ! -f "$folder/libnccl-profiler.so" ] || { other=$folder/libnccl-profiler.so && break; }
    done
    unset IFS
fi
alone=
case ${NCCL_PROFILER_PLUGIN:-} in
[nN][oO][nN][eE]) alone=1 ;;
'' | "$PLUGIN") ;;
*) [ "${HANGSCOPE_NEXT_PROFILER:-}" != none ] || alone=1 ;;
esac
case $other in *[[:space:]]*) alone=1 ;; esac
if [ -n "$PLUGIN" ] && [ -r "$PLUGIN" ] && [ -z "$alone" ] && [ -z "${HANGSCOPE_BLACKBOX_DIR+set}" ] &&
    private "/dev/shm/hangscope-$user" box; then
    offer HANGSCOPE_BLACKBOX_DIR "/dev/shm/hangscope-$user/$attempt/box/"
    [ -z "$other" ] || offer HANGSCOPE_NEXT_PROFILER "$other"
    if [ "${NCCL_PROFILER_PLUGIN:-}" != "$PLUGIN" ]; then
        echo "export NCCL_PROFILER_PLUGIN=$PLUGIN"
        ours="$ours NCCL_PROFILER_PLUGIN=$PLUGIN"
    fi
fi

# What came along and is not given again: its folder is not here.
for name in $before; do
    case " $ours" in
    *" $name="*) ;;
    *)
        if [ "$name" = NCCL_PROFILER_PLUGIN ] && [ -n "${replaced:-}" ]; then
            echo "export $name=$replaced"
        else
            echo "unset $name"
        fi
        ;;
    esac
done
# By this a `hangscope run` inside the job knows that it was not the job that set these.
if [ -n "$ours" ]; then
    echo "export HANGSCOPE_PLATFORM=${ours# }"
elif [ -n "$before" ]; then
    echo "unset HANGSCOPE_PLATFORM"
fi
exit 0
