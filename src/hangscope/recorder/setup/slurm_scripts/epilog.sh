# Slurm's Epilog: runs as root on each node after a job. The last job's ends the agent that the Prolog began; what the
# job left on the node's own disk and in its memory goes, but for dumps. Always ends with 0, and at once.

PATH=/usr/sbin:/usr/bin:/sbin:/bin

# With the rights of the job's user, who could have put a link there.
clean() {
    name=$SLURM_JOB_ID.[0-9]
    for folder in /tmp/hangscope-$1/$name* /dev/shm/hangscope-$1/$name*; do
        rm -rf "$folder/logs" "$folder/box"
        rmdir "$folder/dumps" "$folder" "${folder%/*}"
    done
}

finish() {
    case ${SLURM_JOB_ID:-} in '' | *[!0-9]*) return ;; esac
    rm -f "$STATE/jobs/$SLURM_JOB_ID"
    if [ -z "$(ls "$STATE/jobs")" ] && read -r agent <"$STATE/agent.pid"; then
        case $(tr '\0' ' ' <"/proc/$agent/cmdline") in *hangscope*agent* | *prolog.sh*supervise*) kill "$agent" ;; esac
    fi
    case ${SLURM_JOB_UID:-} in '' | 0 | *[!0-9]*) return ;; esac
    # Slurm kills what is left of our process group when we end: we wait until the other one has left it.
    left=$(setsid sh "$0" detached </dev/null &)
}

case ${1:-} in
detached)
    exec >/dev/null 2>&1
    exec timeout -s KILL 60 setpriv --reuid="$SLURM_JOB_UID" --regid="$SLURM_JOB_UID" --clear-groups sh "$0" clean
    ;;
clean) clean "$SLURM_JOB_UID" 2>/dev/null ;;
*) (finish) >/dev/null 2>&1 ;;
esac
exit 0
