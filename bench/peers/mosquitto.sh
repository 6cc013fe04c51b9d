#!/bin/bash
# Starts Mosquitto (Debian package mosquitto), or describes it. Its files go to the working directory.
#
#   bench/peers/mosquitto.sh describe
#   bench/peers/mosquitto.sh serve tcp 127.0.0.1:1883
#
# Addresses: tcp or tls. With TLS also: chain FILE, key FILE.
set -euo pipefail
PATH=$PATH:/usr/sbin

# Nothing on disk, no log, no delay of small segments, no statistics, and no limit that the load meets.
SETTINGS='allow_anonymous true
persistence false
log_type none
connection_messages false
set_tcp_nodelay true
sys_interval 0
max_inflight_messages 0
max_queued_messages 0'

if [ "${1:-}" = describe ]; then
    command -v mosquitto >/dev/null
    # It prints its version and fails.
    (mosquitto -h || true) | head -n 1
    echo "${SETTINGS//$'\n'/; }"
    exit
fi
shift
declare -A to=()
while [ $# -gt 1 ]; do to[$1]=$2; shift 2; done
address=${to[tls]:-${to[tcp]}}
{
    echo "$SETTINGS"
    [ "$(id -u)" != 0 ] || echo "user root"
    echo "listener ${address##*:} ${address%:*}"
    [ -z "${to[tls]:-}" ] || printf 'certfile %s\nkeyfile %s\n' "${to[chain]}" "${to[key]}"
} >mosquitto.conf
exec mosquitto -c mosquitto.conf
