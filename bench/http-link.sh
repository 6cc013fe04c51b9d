#!/bin/bash
# GET /rest/hello through a link of 400 Mbit/s: Weir and wrk -t8 -c32 in a network namespace of their own, whose loopback
# device is slowed down. Each direction has a class with that rate.
#
# Needs root, iproute2 (ip, tc) and wrk. Settings: see lib.sh; MBIT (400).
. "$(dirname "$0")/lib.sh"

need ip iproute2
need tc iproute2
need wrk wrk
MBIT=${MBIT:-400}
SPACE=weir-link-$$

if ! ip netns add "$SPACE" 2>/dev/null; then
    echo "weir: not measured, since this user may not make a network namespace"
    exit
fi
remove_space() {
    clean_up
    ip netns del "$SPACE" 2>/dev/null || true
}
trap remove_space EXIT

inside() { ip netns exec "$SPACE" "$@"; }
inside ip link set lo up
inside tc qdisc add dev lo root handle 1: htb default 2
for class in 1 2; do
    inside tc class add dev lo parent 1: classid 1:$class htb rate "${MBIT}mbit" burst 256k cburst 256k quantum 60000
done
inside tc filter add dev lo parent 1: protocol ip u32 match ip sport 8080 0xffff flowid 1:1

directory=$SCRATCH/weir
mkdir -p "$directory"
cat >"$directory/weir.toml" <<CONFIG
listen.tcp = ["127.0.0.1:7070"]
listen.udp = []
listen.http = ["127.0.0.1:8080"]
listen.admin = "127.0.0.1:7090"
auth.anonymous = true
log.level = "warn"
CONFIG
(cd "$directory" || exit
 export WEIR_STORE_KIND=none
 exec ip netns exec "$SPACE" "$WEIR" serve --config weir.toml) >"$directory/log" 2>&1 &
STARTED+=($!)
for ((tries = 0; tries < 200; tries++)); do
    ! inside bash -c ': </dev/tcp/127.0.0.1/8080' 2>/dev/null || break
    kill -0 $! 2>/dev/null || { cat "$directory/log" >&2; fail "weir ended at once"; }
    sleep 0.05
done
out=$SCRATCH/wrk
inside wrk -t8 -c32 -d"${SECONDS_EACH}s" --latency "http://127.0.0.1:8080/rest/hello" >"$out"
! grep -E 'Socket errors|Non-2xx' "$out" || fail "weir answered wrongly"
awk -v mbit="$MBIT" '
    $1 ~ /^(50|99)%$/ { sub(/%/, "", $1); latency = latency sprintf(", p%s %s", $1, $2) }
    /Requests\/sec/ { rate = $2 }
    /Transfer\/sec/ { transfer = $2 }
    END { printf "weir through %d Mbit/s: %.0f requests/s, %s/s of answers%s\n", mbit, rate, transfer, latency }' "$out"
