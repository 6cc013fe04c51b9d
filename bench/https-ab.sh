#!/bin/bash
# A connection for each request, by ab: over HTTP, and over HTTPS with RSA-2048 and ECDHE-RSA-AES128-GCM-SHA256.
#
# Needs apache2-utils (ab) and openssl. Settings: see lib.sh; REQUESTS (100000), CONCURRENCY (100), ROUNDS (1).
ROUNDS=${ROUNDS:-1}
. "$(dirname "$0")/lib.sh"

need ab apache2-utils
need openssl openssl
REQUESTS=${REQUESTS:-100000}
CONCURRENCY=${CONCURRENCY:-100}
SUITE=ECDHE-RSA-AES128-GCM-SHA256

openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost \
    -keyout "$SCRATCH/key.pem" -out "$SCRATCH/chain.pem" 2>/dev/null
start_weir weir "
listen.https = [\"{https}\"]
[[tls.certificates]]
certificate = \"$SCRATCH/chain.pem\"
key = \"$SCRATCH/key.pem\""

# run NAME URL OPTIONS…: requests a second, and CPU time of the server per request.
run() {
    local name=$1 url=$2 out=$SCRATCH/ab-$1 before after
    shift 2
    before=$(cpu_ticks "$weir_PID")
    on_client ab -q -n "$REQUESTS" -c "$CONCURRENCY" "$@" "$url" >"$out" 2>&1 || { cat "$out" >&2; fail "ab failed"; }
    after=$(cpu_ticks "$weir_PID")
    grep -qE '^Failed requests: +0$' "$out" && ! grep -q '^Non-2xx' "$out" || { cat "$out" >&2; fail "$name: failed requests"; }
    awk -v ticks=$((after - before)) '
        /^Complete requests/ { answered = $3 }
        /^Requests per second/ { rate = $4 }
        /^SSL\/TLS Protocol/ { print > "/dev/stderr" }
        END { printf "%s %.2f\n", rate, ticks * 10000 / answered }' "$out" >>"$SCRATCH/$name"
}

for ((round = 1; round <= ROUNDS; round++)); do
    run http "http://$weir_HTTP/rest/hello"
    run https "https://$weir_HTTPS/rest/hello" -f TLS1.2 -Z "$SUITE"
done
echo "ab -n $REQUESTS -c $CONCURRENCY, a connection for each request, $ROUNDS rounds, medians"
for name in http https; do
    rate=$(cut -d' ' -f1 "$SCRATCH/$name" | median)
    cpu=$(cut -d' ' -f2 "$SCRATCH/$name" | median)
    printf '%-6s %9.0f requests/s, %8.2f us of CPU time per request\n' $name "$rate" "$cpu"
    declare "${name}_rate=$rate" "${name}_cpu=$cpu"
done
awk -v a="$http_rate" -v b="$https_rate" -v c="$http_cpu" -v d="$https_cpu" \
    'BEGIN { printf "HTTP to HTTPS: %.1f times the requests a second; HTTPS to HTTP: %.1f times the CPU time\n", a / b, d / c }'
