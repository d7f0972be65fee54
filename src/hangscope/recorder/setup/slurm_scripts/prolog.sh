# Slurm's Prolog: runs as root on each node before a job, and has the node watched for as long as a job is on it. One
# agent serves all jobs. Slurm drains a node whose Prolog fails: this one always ends with 0, and at once.

set -f
PATH=/usr/sbin:/usr/bin:/sbin:/bin
jobs=$STATE/jobs

# Until no job is left: the agent, again where it was killed. One of us at a time; another waits until a job is gone.
supervise() {
    pause=1
    while [ -n "$(ls "$jobs" 2>/dev/null)" ]; do
        begun=$(date +%s)
        [ "$(stat -c %s "$LOG" 2>/dev/null || echo 0)" -lt 10000000 ] || mv -f "$LOG" "$LOG.1" || rm -f "$LOG"
        where=$LOG
        touch "$LOG" || where=/dev/null
        # shellcheck disable=SC2086
        env -i PATH="$PATH" LANG=C.UTF-8 HOME=/ "$COMMAND" agent $OPTIONS </dev/null >>"$where" 2>&1 &
        echo $! >"$STATE/agent.part" && mv -f "$STATE/agent.part" "$STATE/agent.pid"
        # The last job may have ended before its Epilog could know this agent: nobody else would end it.
        [ -n "$(ls "$jobs" 2>/dev/null)" ] || kill $!
        wait $!
        if [ $(($(date +%s) - begun)) -ge 30 ]; then pause=1; fi
        [ -z "$(ls "$jobs" 2>/dev/null)" ] || sleep $pause
        pause=$((pause < 60 ? 2 * pause : 60))
    done
}

start() {
    case ${SLURM_JOB_ID:-} in '' | *[!0-9]*) return ;; esac
    (umask 022 && mkdir -p "$jobs") && touch "$jobs/$SLURM_JOB_ID" && [ -x "$COMMAND" ] || return
    # Slurm kills what is left of our process group when we end: we wait until the other one has left it.
    left=$(setsid sh "$0" detached </dev/null &)
}

case ${1:-} in
detached)
    exec >/dev/null 2>&1
    # -w: an agent that is just ending leaves the lock within that time, and one that stays serves this job too.
    exec flock -o -w 5 "$STATE/lock" sh "$0" supervise
    ;;
supervise) supervise ;;
*) (start) >/dev/null 2>&1 ;;
esac
exit 0
