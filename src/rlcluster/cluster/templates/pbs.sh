#!/bin/bash
@directives@
# Written by `rlcluster submit`: @title@
# Starts one process per host, which spawns that host's ranks; restarts them after a failure; is submitted again after
# the run has saved. PBS gives no signal before the wall time: --max-wall makes the run save in time.
set -u
umask go-w
jobs=@jobs@
launch=@launch@
array=${PBS_ARRAY_INDEX:-${PBS_ARRAYID:-}}
export RLCLUSTER_TASK=${RLCLUSTER_TASK:-$array}
export RLCLUSTER_CORES=@cores@    # of each host, for all its ranks together: without cpusets PBS binds nothing
requeues=${RLCLUSTER_REQUEUES:-0}
id=${PBS_JOBID%%.*}
folder=$jobs/$id
record=$jobs/${id%%\[*}    # of the whole array, if this is a task of one
mkdir -p "$folder" && exec >> "$jobs/$id.log" 2>&1 || exit 74

note() { echo "$(date '+%F %T') $*" | tee -a "$folder/history.txt"; }

cancelled='' stopped=''
trap 'cancelled=yes' TERM           # qdel: PBS tells the ranks itself, unless ssh has started them

leave() {    # $1: exit code. A suite's report does not wait for a task that was submitted again: the task updates it.
    if [ "$requeues" -gt 0 ]; then @report@; fi
    exit "$1"
}

requeue() {
    if [ "$requeues" -ge @max_requeues@ ]; then
        note "not started again: --max-requeues @max_requeues@ is used up ($1)"
        leave 75
    fi
    local next
    if next=$(qsub -v "RLCLUSTER_REQUEUES=$((requeues + 1))${RLCLUSTER_TASK:+,RLCLUSTER_TASK=$RLCLUSTER_TASK}" "$record/job.sh"); then
        next=${next%%.*}
        mkdir -p "$jobs/$next" && cp "$record/job.sh" "$record/job.json" "$jobs/$next/"
        note "requeued $((requeues + 1)) of @max_requeues@ as $next: $1"
        exit 0
    fi
    note "not started again: qsub does not work on $(hostname); submit the same command again to resume ($1)"
    leave 75
}

cd @directory@ || { note "failed: $(hostname) cannot enter the folder in which the job was submitted"; exit 74; }
set +u    # modules and environments may use variables that are not set
@setup@
set -u

# pbsdsh passes no environment: each host reads it from a file that only this user can read.
( umask 077; export -p > "$folder/environment.sh" )
awk '!seen[$0]++' "$PBS_NODEFILE" > "$folder/hosts"
cat > "$folder/host.sh" <<'END'
# $1: the folder of the job, $2: the number of this host, $3: seconds until the run has to save, or `stop`
if [ "$3" = stop ]; then
    for _ in {1..10}; do    # it may have started just now
        if [ -s "$1/host-$2.pid" ]; then break; fi
        sleep 1
    done
    kill -TERM "$(cat "$1/host-$2.pid")"
    exit
fi
trap : TERM    # the ranks get it too; their exit code is still to be written
. "$1/environment.sh"
(
    cd @directory@ || exit 74
    echo "$BASHPID" > "$1/host-$2.pid"
    exec @host_ranks@ --hosts "$1/hosts" --host-number "$2" --log-dir "$1" -- \
        @command@ --max-wall "${3}s"
)
echo $? > "$1/host-$2.code"
END

on_host() {    # $1: number of the host, $2: its name, $3: seconds or `stop`
    case $launch in
        ssh) ssh -o BatchMode=yes "$2" "/bin/bash $(printf '%q ' "$folder/host.sh" "$folder" "$1" "$3")" ;;
        *) pbsdsh -n "$(grep -nxF "$2" "$PBS_NODEFILE" | head -1 | awk -F: '{print $1 - 1}')" \
            /bin/bash "$folder/host.sh" "$folder" "$1" "$3" ;;
    esac
}

stop_hosts() {    # once, after a qdel: PBS does not know what ssh has started
    local number
    if [ -z "$cancelled" ] || [ "$launch" != ssh ] || [ -n "$stopped" ]; then return; fi
    stopped=yes
    for number in "${!hosts[@]}"; do
        on_host "$number" "${hosts[number]}" stop &
    done
}

start_ranks() {
    rm -f "$folder"/host-*.code "$folder"/host-*.pid
    local number=0 host status patience=60 hosts=() started=() seconds=$((@save_after@ - SECONDS))
    if [ -n "$cancelled" ]; then return 143; fi
    if [ "$seconds" -lt 1 ]; then return 75; fi
    mapfile -t hosts < "$folder/hosts"
    for host in "${hosts[@]}"; do
        on_host "$number" "$host" "$seconds" &
        started+=($!)
        number=$((number + 1))
    done
    for host in "${started[@]}"; do
        while true; do
            wait "$host"
            status=$?
            stop_hosts
            kill -0 "$host" 2> /dev/null || break    # a signal ends `wait`, not the ranks
        done
        [ "$status" = 0 ] || patience=0    # a host that was not reached writes nothing
    done
    [ -z "$cancelled" ] || patience=60    # what has started the ranks ends before they have saved
    highest_code "$number" "$patience"
}

highest_code() {    # $1: number of hosts, $2: seconds; a shared file system may be late with what other hosts wrote
    local waited=0 codes=()
    while true; do
        mapfile -t codes < <(cat "$folder"/host-*.code 2> /dev/null | sort -n)
        if [ "${#codes[@]}" -ge "$1" ] && [ "$1" -gt 0 ]; then return "${codes[-1]}"; fi
        if [ "$waited" -ge "$2" ]; then return 71; fi
        waited=$((waited + 1))
        sleep 1
    done
}

touch "$folder/started"
note "started on $(paste -sd, "$folder/hosts")"
restarts=0
while true; do
    start_ranks
    code=$?
    if [ "$code" = 143 ] || { [ -n "$cancelled" ] && [ "$code" != 0 ]; }; then
        note "stopped by the scheduler (exit code $code)"
        exit "$code"
    fi
    case $code in
        0) note "finished"; leave 0 ;;
        75) requeue "saved before the time limit" ;;
        @final_codes@) note "failed with exit code $code: starting it again would not help"; leave "$code" ;;
    esac
    if [ "$restarts" -ge @max_restarts@ ]; then break; fi
    restarts=$((restarts + 1))
    note "restart $restarts of @max_restarts@ after exit code $code"
done
if [ -n "$(find @checkpoints@ -name '*.pt' -newer "$folder/started" 2> /dev/null)" ]; then
    requeue "exit code $code"
fi
note "failed with exit code $code: no checkpoint was written since this job started, so it is not submitted again"
leave "$code"
