# What the scripts of this directory share; sourced, not run.
#
# Whatever they start is ended, and whatever they write removed, when they end. Settings are variables:
# WEIR, WEIR_BENCH, NGINX (programs), SERVER_CPUS, CLIENT_CPUS (lists such as 0,2-3; empty: any), ROUNDS, SECONDS_EACH.

set -euo pipefail
export LC_ALL=C

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
WEIR=${WEIR:-$ROOT/target/release/weir}
WEIR_BENCH=${WEIR_BENCH:-$ROOT/target/release/weir-bench}
NGINX=${NGINX:-nginx}
ROUNDS=${ROUNDS:-3}
SECONDS_EACH=${SECONDS_EACH:-10}
SCRATCH=$(mktemp -d)
STARTED=()

# Ends a child by its id.
stop() {
    kill "$1" 2>/dev/null || true
    wait "$1" 2>/dev/null || true
}

clean_up() {
    local pid
    for pid in "${STARTED[@]}"; do stop "$pid"; done
    rm -rf "$SCRATCH"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

fail() {
    echo "${0##*/}: $*" >&2
    exit 1
}

# need PROGRAM PACKAGE: ends the run if a program is not there.
need() {
    command -v "$1" >/dev/null || fail "needs $1 (Debian package $2)"
}

have() {
    command -v "$1" >/dev/null
}

# Runs a command on the server's, or on the generator's CPUs.
on_server() {
    if [ -n "${SERVER_CPUS:-}" ]; then exec taskset -c "$SERVER_CPUS" "$@"; else exec "$@"; fi
}
on_client() {
    if [ -n "${CLIENT_CPUS:-}" ]; then taskset -c "$CLIENT_CPUS" "$@"; else "$@"; fi
}

# Sets PORT to one on which nobody listens.
choose_port() {
    while :; do
        PORT=$((20000 + RANDOM % 10000))
        if ! (: </dev/tcp/127.0.0.1/$PORT) 2>/dev/null; then return; fi
    done
}

# wait_for_port PID LOG: until somebody listens on PORT.
wait_for_port() {
    local tries
    for ((tries = 0; tries < 200; tries++)); do
        if (: </dev/tcp/127.0.0.1/$PORT) 2>/dev/null; then return; fi
        if ! kill -0 "$1" 2>/dev/null; then
            cat "$2" >&2
            fail "a server ended at once"
        fi
        sleep 0.05
    done
    fail "a server is not ready after 10 s"
}

# start_weir NAME [LINES]: with LINES in its configuration; {https} in them is a free address.
# Sets NAME_PID, NAME_HTTP, NAME_HTTPS and NAME_ADMIN (addresses).
start_weir() {
    local name=$1 lines=${2:-} directory=$SCRATCH/weir-$1 tcp http https admin
    [ -x "$WEIR" ] || fail "no program $WEIR: build with cargo build --release, or set WEIR"
    mkdir -p "$directory"
    choose_port; tcp=127.0.0.1:$PORT
    choose_port; https=127.0.0.1:$PORT
    choose_port; admin=127.0.0.1:$PORT
    choose_port; http=127.0.0.1:$PORT
    {
        echo "listen.tcp = [\"$tcp\"]"
        echo "listen.udp = []"
        echo "listen.http = [\"$http\"]"
        echo "listen.admin = \"$admin\""
        echo "auth.anonymous = true"
        echo "log.level = \"warn\""
        echo "${lines//\{https\}/$https}"
    } >"$directory/weir.toml"
    # By default all would share a file of devices. Versions without a store know nothing of the variable.
    (cd "$directory" || exit
     [[ $lines == *store.kind* ]] || export WEIR_STORE_KIND=none
     on_server "$WEIR" serve --config weir.toml) >"$directory/log" 2>&1 &
    STARTED+=($!)
    wait_for_port $! "$directory/log"
    declare -g "${name}_PID=$!" "${name}_HTTP=$http" "${name}_HTTPS=$https" "${name}_ADMIN=$admin"
}

# start_baseline NAME ARGUMENTS…: a bare server of weir-bench. Sets NAME_PID and NAME_HTTP.
start_baseline() {
    local name=$1 log=$SCRATCH/baseline-$1
    shift
    [ -x "$WEIR_BENCH" ] || fail "no program $WEIR_BENCH: build with cargo build --release -p weir-bench, or set WEIR_BENCH"
    choose_port
    (on_server "$WEIR_BENCH" baseline "$@" --listen "127.0.0.1:$PORT") >"$log" 2>&1 &
    STARTED+=($!)
    wait_for_port $! "$log"
    declare -g "${name}_PID=$!" "${name}_HTTP=127.0.0.1:$PORT"
}

# start_nginx NAME [h2]: one process that says Hello World. Sets NAME_PID and NAME_HTTP.
start_nginx() {
    local name=$1 directory=$SCRATCH/nginx-$1 listen
    mkdir -p "$directory"
    choose_port
    listen="listen 127.0.0.1:$PORT backlog=4096"
    if [ "${2:-}" != h2 ]; then
        listen="$listen;"
    elif printf '%s\n' 1.25.1 "$("$NGINX" -v 2>&1 | sed 's,.*nginx/\([0-9.]*\).*,\1,')" | sort -CV; then
        listen="$listen; http2 on;"
    else
        listen="$listen http2;"
    fi
    cat >"$directory/nginx.conf" <<END
daemon off; master_process off; worker_processes 1; pid $directory/pid;
events { worker_connections 4096; }
http {
    access_log off; default_type text/plain; keepalive_requests 2000000000; keepalive_timeout 1h;
    client_body_temp_path $directory/1; proxy_temp_path $directory/2; fastcgi_temp_path $directory/3;
    uwsgi_temp_path $directory/4; scgi_temp_path $directory/5;
    server { $listen location / { return 200 "Hello World"; } }
}
END
    (on_server "$NGINX" -p "$directory" -c "$directory/nginx.conf" -e "$directory/log") >"$directory/out" 2>&1 &
    STARTED+=($!)
    wait_for_port $! "$directory/log"
    declare -g "${name}_PID=$!" "${name}_HTTP=127.0.0.1:$PORT"
}

# CPU time of a process in hundredths of a second, all its threads.
cpu_ticks() {
    sed 's/.*) //' "/proc/$1/stat" | awk '{ print $12 + $13 }'
}

# The middle of the numbers on standard input, one a line.
median() {
    sort -n | awk '{ all[NR] = $1 } END { if (NR) print (all[int((NR + 1) / 2)] + all[int(NR / 2) + 1]) / 2 }'
}
