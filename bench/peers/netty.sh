#!/bin/bash
# Starts the Netty server of netty/, which `cargo xtask bench` builds, or describes it.
#
#   bench/peers/netty.sh describe
#   bench/peers/netty.sh serve tcp 127.0.0.1:7070 admin 127.0.0.1:7090
#
# Addresses: tcp, tls, http, https, udp, admin. With TLS also: chain FILE, key FILE. For calls: tokens N.
# PEERS names the directory with what is built, JAVA_OPTIONS other options.
set -euo pipefail
PEERS=${PEERS:-$(cd "$(dirname "$0")/../.." && pwd)/target/peers}

# The collector is named because Java takes another one on one processor. Nothing is checked that only finds mistakes.
JAVA_OPTIONS=${JAVA_OPTIONS:--XX:+UseG1GC -Xms256m -Xmx4g -XX:-UsePerfData \
    -Dio.netty.leakDetection.level=disabled \
    -Dio.netty.buffer.checkBounds=false -Dio.netty.buffer.checkAccessible=false}

[ "${1:-}" = describe ] || shift
# shellcheck disable=SC2086 # The options are words.
exec java $JAVA_OPTIONS -cp "$PEERS/netty/classes:$PEERS/netty/libraries/*" Main "$@"
