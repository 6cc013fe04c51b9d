#!/bin/bash
# What the access log costs: requests a second without it and with it. Two servers take turns; lines are full, none
# sampled, and counted.
#
# Needs wrk, curl and util-linux (taskset).
# Settings: see lib.sh; ROUNDS (5), SECONDS_EACH (10), CONNECTIONS (64), FORMAT (json), SERVER_CPUS (0), CLIENT_CPUS (1).
ROUNDS=${ROUNDS:-5} SERVER_CPUS=${SERVER_CPUS-0} CLIENT_CPUS=${CLIENT_CPUS-1}
. "$(dirname "$0")/lib.sh"

need wrk wrk
need curl curl
need taskset util-linux
CONNECTIONS=${CONNECTIONS:-64}
FORMAT=${FORMAT:-json}

start_weir off
start_weir on "$(printf 'access_log.path = "%s"\naccess_log.format = "%s"\n' "$SCRATCH/on.log" "$FORMAT")"

# metric NAME: a counter of the server that is measured.
metric() {
    curl -sf "http://$admin/metrics" | awk -v name="$1" '$1 == name { print $2 }'
}

modes=(off on)
for ((round = 0; round < ROUNDS; round++)); do
    for ((turn = 0; turn < 2; turn++)); do
        mode=${modes[(turn + round) % 2]}
        address=${mode}_HTTP out=$SCRATCH/wrk-$mode
        on_client wrk -t1 -c"$CONNECTIONS" -d"${SECONDS_EACH}s" "http://${!address}/rest/hello" >"$out"
        ! grep -E 'Socket errors|Non-2xx' "$out" || fail "$mode: wrong answers"
        awk '/Requests\/sec/ { print $2 }' "$out" >>"$SCRATCH/rate-$mode"
        awk '/requests in/ { print $1 }' "$out" >>"$SCRATCH/answered-$mode"
        # The disk is not to fill up; the file is emptied, not replaced.
        if [ -e "$SCRATCH/$mode.log" ]; then
            sleep 1
            wc -l <"$SCRATCH/$mode.log" >>"$SCRATCH/lines-$mode"
            : >"$SCRATCH/$mode.log"
        fi
    done
done

echo "access log ($FORMAT, a full line for each request), wrk -t1 -c$CONNECTIONS, server on CPUs ${SERVER_CPUS:-any}," \
    "wrk on ${CLIENT_CPUS:-any}, ${SECONDS_EACH} s each, $ROUNDS rounds, medians"
none=$(median <"$SCRATCH/rate-off")
for mode in "${modes[@]}"; do
    rate=$(median <"$SCRATCH/rate-$mode")
    awk -v mode="$mode" -v rate="$rate" -v none="$none" \
        'BEGIN { printf "%-12s %9.0f requests/s, %5.1f %% of those without\n", mode, rate, 100 * rate / none }'
    [ "$mode" != off ] || continue
    address=${mode}_ADMIN admin=${!address}
    answered=$(awk '{ sum += $1 } END { print sum + 0 }' "$SCRATCH/answered-$mode")
    lines=$(awk '{ sum += $1 } END { print sum + 0 }' "$SCRATCH/lines-$mode")
    dropped=$(metric weir_access_log_dropped_total)
    echo "             $answered answers, $lines lines in the file, $dropped dropped"
    [ "$dropped" = 0 ] || fail "$mode: lines were dropped"
    # wrk does not count the answers to what it had asked when its time was up.
    [ "$lines" -ge "$answered" ] || fail "$mode: lines are missing"
done
