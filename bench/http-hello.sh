#!/bin/bash
# GET /rest/hello by outside generators: wrk on all CPUs with latencies, and h2load against one CPU, with the server's
# CPU time per request. Weir, bare hyper (of weir-bench) and nginx take turns; who is not there is left out.
#
# Needs wrk, nghttp2-client (h2load) and util-linux (taskset); nginx if it is to be compared.
# Settings: see lib.sh; ROUNDS (3), SECONDS_EACH (10), SERVER_CPUS (0) and CLIENT_CPUS (1) of the part with h2load.
. "$(dirname "$0")/lib.sh"

need wrk wrk
need h2load nghttp2-client
need taskset util-linux
H2_SERVER_CPUS=${SERVER_CPUS:-0}
H2_CLIENT_CPUS=${CLIENT_CPUS:-1}
SERVER_CPUS= CLIENT_CPUS=

start_weir weir
start_baseline hyper http-hyper
servers=(weir hyper)
if have "$NGINX"; then
    start_nginx nginx
    servers+=(nginx)
else
    echo "nginx is left out: there is no program $NGINX"
fi

echo "HTTP/1.1, wrk -t8, on all CPUs, ${SECONDS_EACH} s each, $ROUNDS rounds"
for connections in 32 64; do
    for ((round = 1; round <= ROUNDS; round++)); do
        for server in "${servers[@]}"; do
            address=${server}_HTTP
            out=$SCRATCH/wrk-$server-$connections-$round
            wrk -t8 -c$connections -d"${SECONDS_EACH}s" --latency "http://${!address}/rest/hello" >"$out"
            ! grep -E 'Socket errors|Non-2xx' "$out" || fail "$server answered wrongly"
            awk '/Requests\/sec/ { print $2 }' "$out" >>"$SCRATCH/rate-$server-$connections"
        done
    done
    for server in "${servers[@]}"; do
        # The latencies are those of the last round.
        latency=$(awk '$1 ~ /^(50|75|90|99)%$/ { printf " p%s %s", $1, $2 }' "$SCRATCH/wrk-$server-$connections-$ROUNDS")
        printf '%-6s %s connections: %9.0f requests/s (median)%s\n' \
            "$server" $connections "$(median <"$SCRATCH/rate-$server-$connections")" "$latency"
    done
done
for server in "${servers[@]}"; do
    pid=${server}_PID
    stop "${!pid}"
done

SERVER_CPUS=$H2_SERVER_CPUS CLIENT_CPUS=$H2_CLIENT_CPUS
start_weir weir2
start_baseline hyper2 http-hyper --h2
servers=(weir2 hyper2)
if have "$NGINX"; then
    start_nginx nginx2 h2
    servers+=(nginx2)
fi
echo "HTTP/2, h2load -c16 -m32, server on CPUs $SERVER_CPUS, h2load on $CLIENT_CPUS, ${SECONDS_EACH} s each, $ROUNDS rounds"
for ((round = 1; round <= ROUNDS; round++)); do
    for server in "${servers[@]}"; do
        address=${server}_HTTP pid=${server}_PID out=$SCRATCH/h2load-$server
        before=$(cpu_ticks "${!pid}")
        on_client h2load -t1 -c16 -m32 -D "$SECONDS_EACH" "http://${!address}/rest/hello" >"$out"
        after=$(cpu_ticks "${!pid}")
        grep -q ' 0 failed, 0 errored, 0 timeout' "$out" || { cat "$out" >&2; fail "$server answered wrongly"; }
        awk -v ticks=$((after - before)) '
            /^finished in/ { sub(/,/, "", $4); rate = $4 }
            /^status codes/ { answered = $3 }
            END { if (!answered) exit 1; printf "%s %.3f\n", rate, ticks * 10000 / answered }' "$out" >>"$SCRATCH/h2-$server"
    done
done
for server in "${servers[@]}"; do
    printf '%-6s %9.0f requests/s, %6.2f us of CPU time per request (medians)\n' "${server%2}" \
        "$(cut -d' ' -f1 "$SCRATCH/h2-$server" | median)" "$(cut -d' ' -f2 "$SCRATCH/h2-$server" | median)"
done
