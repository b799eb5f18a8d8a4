#!/bin/bash
@directives@
# Written by `rlcluster submit`: @title@
# Starts the ranks; restarts them after a failure; is requeued before its time limit, after the run has saved.
set -u
umask go-w
jobs=@jobs@
id=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_$SLURM_ARRAY_TASK_ID}
id=${id:-$SLURM_JOB_ID}
folder=$jobs/$id
export RLCLUSTER_TASK=${SLURM_ARRAY_TASK_ID:-}
mkdir -p "$folder" && exec >> "$jobs/$id.log" 2>&1 || exit 74

note() { echo "$(date '+%F %T') $*" | tee -a "$folder/history.txt"; }

asked_to_save='' cancelled=''
trap 'asked_to_save=yes' USR1       # before the time limit; see --signal
trap 'cancelled=yes' TERM           # scancel and preemption: Slurm tells the ranks itself

requeue() {
    local count
    count=$(grep -c ' requeued ' "$folder/history.txt")
    if [ "$count" -ge @max_requeues@ ]; then
        note "not started again: --max-requeues @max_requeues@ is used up ($1)"
        exit 75
    fi
    note "requeued $((count + 1)) of @max_requeues@: $1"
    scontrol requeue "$id" && exit 0
    note "not started again: scontrol does not work on $(hostname); submit the same command again to resume ($1)"
    exit 75
}

end_after_signal() {    # after scancel the job is no longer RUNNING; before a preemption it still is, for its grace time
    if scontrol show job "$id" | grep -q 'JobState=RUNNING'; then
        note "preempted, requeued"
        scontrol requeue "$id" && exit 0
    fi
    note "stopped by the scheduler (exit code $1)"
    command -v scontrol > /dev/null || sleep 600    # then Slurm itself has to end this job, or to requeue it
    exit "$1"
}

start_ranks() {
    @srun@ \
        --output="${folder//%/%%}/rank-%4t.log" --open-mode=append --kill-on-bad-exit=0 --wait=60 \
        bash -c 'trap "" USR1; exec "$@"' rank \
        @command@ &
    local ranks=$!
    while kill -0 "$ranks" 2> /dev/null; do
        [ -z "$asked_to_save" ] || kill -USR1 "$ranks"   # more than once: ranks that are starting may miss one
        sleep 1
    done
    wait "$ranks"
}

cd @directory@ || { note "failed: $(hostname) cannot enter the folder in which the job was submitted"; exit 74; }
set +u    # modules and environments may use variables that are not set
@setup@
set -u
touch "$folder/started"
note "started on $SLURM_JOB_NODELIST"
restarts=0
while true; do
    start_ranks
    code=$?
    if [ "$code" = 143 ] || { [ -n "$cancelled" ] && [ "$code" != 0 ]; }; then end_after_signal "$code"; fi
    case $code in
        0) note "finished"; exit 0 ;;
        75) requeue "saved before the time limit" ;;
        @final_codes@) note "failed with exit code $code: starting it again would not help"; exit "$code" ;;
    esac
    if [ "$restarts" -ge @max_restarts@ ]; then break; fi
    restarts=$((restarts + 1))
    note "restart $restarts of @max_restarts@ after exit code $code"
done
if [ -n "$(find @checkpoints@ -name '*.pt' -newer "$folder/started" 2> /dev/null)" ]; then
    requeue "exit code $code"
fi
note "failed with exit code $code: no checkpoint was written since this job started, so it is not requeued"
exit "$code"
