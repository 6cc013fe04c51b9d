#!/bin/bash
# Starts the reverse proxy of pingora/, which `cargo xtask bench` builds, or describes it.
#
#   bench/peers/pingora.sh describe
#   bench/peers/pingora.sh serve http 127.0.0.1:8080 backends 127.0.0.1:8081,127.0.0.1:8082
#
# PEERS names the directory with what is built.
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
PEERS=${PEERS:-$HERE/../../target/peers}
SERVER=$PEERS/pingora/release/pingora-peer

if [ "${1:-}" = describe ]; then
    [ -x "$SERVER" ] || { echo "no program $SERVER" >&2; exit 1; }
    sed -n '/^name = "pingora"$/{n;s/version = "\(.*\)"/pingora \1/p}' "$HERE/pingora/Cargo.lock"
    echo "one thread, no log, connections to the backend kept"
    exit
fi
shift
declare -A to=()
while [ $# -gt 1 ]; do to[$1]=$2; shift 2; done
exec "$SERVER" "${to[http]}" "${to[backends]}"
