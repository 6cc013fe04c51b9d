#!/bin/bash
# Starts a NATS server, which `cargo xtask bench` builds from the module in nats/, or describes it. Its files go to the
# working directory.
#
#   bench/peers/nats.sh describe
#   bench/peers/nats.sh serve tcp 127.0.0.1:4222 admin 127.0.0.1:6060
#
# Addresses: tcp or tls, and admin (profiles of Go). With TLS also: chain FILE, key FILE.
# PEERS names the directory with what is built.
set -euo pipefail
PEERS=${PEERS:-$(cd "$(dirname "$0")/../.." && pwd)/target/peers}
SERVER=$PEERS/nats/nats-server

# No log, no limit that the load meets, and a ping as rare as the heartbeat of the others.
SETTINGS='max_connections: 100000
ping_interval: "15m"
write_deadline: "10s"
max_payload: 1MB
logtime: false
log_file: "/dev/null"'

if [ "${1:-}" = describe ]; then
    "$SERVER" --version
    echo "${SETTINGS//$'\n'/; }"
    exit
fi
shift
declare -A to=()
while [ $# -gt 1 ]; do to[$1]=$2; shift 2; done
{
    echo "listen: \"${to[tls]:-${to[tcp]}}\""
    [ -z "${to[admin]:-}" ] || echo "prof_port: ${to[admin]##*:}"
    # The handshake comes first, as with the others, and not after a greeting in the clear.
    [ -z "${to[tls]:-}" ] ||
        echo "tls { cert_file: \"${to[chain]}\", key_file: \"${to[key]}\", handshake_first: true, timeout: 10 }"
    echo "$SETTINGS"
} >nats.conf
exec "$SERVER" --config nats.conf
