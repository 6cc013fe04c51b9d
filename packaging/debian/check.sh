#!/bin/sh
# Installs, upgrades, removes and purges the package on this machine. Where systemd is the first
# process, it runs the unit; elsewhere run_unit.py starts the gateway as the unit does.
# Run as root: check.sh PACKAGE.deb
set -eu
package=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
config=/etc/weir/weir.toml
here=$(dirname "$0")

fail() { echo "check.sh: $1" >&2; exit 1; }
same() { [ "$2" = "$3" ] || fail "$1: $2, expected $3"; }
mode() { stat -c '%U:%G %a' "$1"; }
has_systemd() { [ -d /run/systemd/system ]; }
of_unit() { systemctl show weir.service --property "$1" --value; }
# Waits until a command succeeds.
until_so() {
    for _ in $(seq 600); do
        if "$@"; then return; fi
        sleep 0.1
    done
    fail "in vain: $*"
}
is_another() { [ "$(of_unit MainPID)" != "$1" ] && systemctl --quiet is-active weir; }
is_gone() { [ ! -e "/proc/$1" ]; }
# A Ping that was sent after that one has its answer.
is_answered_after() {
    kill -0 "$holder" || fail "a connection was closed"
    [ "$(cat "$work/held")" -gt "$(($1 + 1))" ]
}
is_alive_after() { [ "$(of_unit WatchdogTimestampMonotonic)" -gt "$1" ]; }
# Runs a command that puts another process in the place of the gateway. The connection of hold.py
# stays, and so does the unit.
keeps_all() {
    pid=$(of_unit MainPID)
    restarts=$(of_unit NRestarts)
    "$@"
    until_so is_another "$pid"
    until_so is_gone "$pid"
    new=$(of_unit MainPID)
    same "the program of the main process" "$(readlink "/proc/$new/exe")" /usr/bin/weir
    grep -q weir.service "/proc/$new/cgroup" || fail "the main process is not in the unit"
    until_so is_answered_after "$(cat "$work/held")"
    # Twice the time after which the watchdog would end it.
    until_so is_alive_after "$(($(of_unit WatchdogTimestampMonotonic) + 4000000))"
    same "the main process" "$(of_unit MainPID)" "$new"
    same "the restarts" "$(of_unit NRestarts)" "$restarts"
    same "the unit" "$(systemctl is-active weir)" "active"
}
is_ready() { python3 -c 'import urllib.request as r; r.urlopen("http://127.0.0.1:7090/readyz")'; }
connects() { python3 -c 'import socket; socket.create_connection(("127.0.0.1", 7070), 60)'; }

[ "$(id -u)" = 0 ] || fail "only root installs packages"
[ ! -e "$config" ] || fail "weir is installed here already"

# The same package with a higher version, and with another configuration file.
dpkg-deb --raw-extract "$package" "$work/next"
sed -i 's/^Version: .*/&.1/' "$work/next/DEBIAN/control"
dpkg-deb --root-owner-group -Znone --build "$work/next" "$work/next.deb" >/dev/null
sed -i 's/^Version: .*/&.1/' "$work/next/DEBIAN/control"
echo '# new in this version' >>"$work/next/etc/weir/weir.toml"
dpkg-deb --root-owner-group -Znone --build "$work/next" "$work/other.deb" >/dev/null

echo "== install"
dpkg --install "$package"
same "the configuration" "$(mode $config)" "root:weir 640"
same "its directory" "$(mode /etc/weir)" "root:weir 750"
same "the state" "$(mode /var/lib/weir)" "weir:weir 700"
weir config check $config >/dev/null
[ -s /usr/share/bash-completion/completions/weir ] || fail "no completions"
[ -s /usr/share/man/man1/weir.1.gz ] || fail "no man page"
gzip -dc /usr/share/man/man1/weir-devices.1.gz | grep -q import || fail "a man page without commands"
python3 -m json.tool /usr/share/doc/weir/weir.cdx.json >/dev/null || fail "no SBOM"
for example in weir.toml weir.socket prometheus/alerts.yml grafana/weir.json; do
    [ -s "/usr/share/doc/weir/examples/$example" ] || fail "no example $example"
done
systemd-analyze verify --man=no /usr/lib/systemd/system/weir.service

if has_systemd; then
    echo "== the unit runs"
    same "the unit after the installation" "$(systemctl is-active weir)" "active"
    is_ready || fail "the gateway is not ready, but its unit is"
    systemctl reload weir
    runuser -u weir -- weir connections --config $config >/dev/null
    pid=$(of_unit MainPID)
    grep -q '^CapEff:	0000000000000000$' "/proc/$pid/status" || fail "the gateway has capabilities"
    grep -q '^Seccomp:	2$' "/proc/$pid/status" || fail "the gateway may make every system call"

    echo "== it is killed"
    kill -KILL "$pid"
    until_so is_another "$pid"

    echo "== it hangs"
    mkdir /run/systemd/system/weir.service.d
    printf '[Service]\nWatchdogSec=2s\nTimeoutAbortSec=1s\n' >/run/systemd/system/weir.service.d/short.conf
    systemctl daemon-reload
    systemctl restart weir
    pid=$(of_unit MainPID)
    kill -STOP "$pid"
    until_so is_another "$pid"
    same "the restarts" "$(of_unit NRestarts)" 1
    rm -r /run/systemd/system/weir.service.d

    echo "== systemd opens an address"
    cp /usr/share/doc/weir/examples/weir.socket /run/systemd/system/
    systemctl daemon-reload
    systemctl stop weir
    systemctl start weir.socket
    # Nobody listens there but systemd, which starts the gateway now.
    connects
    until_so systemctl --quiet is-active weir
    is_ready || fail "the gateway is not ready after its activation"
    weir upgrade --config $config >/dev/null
    connects
    systemctl stop weir.socket weir
    rm /run/systemd/system/weir.socket
    systemctl daemon-reload

    echo "== another process takes its place"
    mkdir /run/systemd/system/weir.service.d
    cat >/run/systemd/system/weir.service.d/check.conf <<END
[Service]
WatchdogSec=2s
Environment=WEIR_AUTH_ANONYMOUS=true
END
    systemctl daemon-reload
    systemctl start weir
    python3 "$here/hold.py" "$work/held" &
    holder=$!
    until_so [ -s "$work/held" ]
    keeps_all systemctl kill -s USR2 --kill-whom=main weir
    keeps_all weir upgrade --config $config
    runuser -u weir -- weir connections --config $config >/dev/null
else
    echo "== run as the unit does"
    python3 "$here/run_unit.py" /usr/lib/systemd/system/weir.service
fi

echo "== upgrade"
echo '# mine' >>$config
if has_systemd; then
    keeps_all dpkg --install "$work/next.deb"
    # The end of the newest process is noticed, too.
    kill "$holder"
    pid=$(of_unit MainPID)
    kill -KILL "$pid"
    until_so is_another "$pid"
    # It hears of no upgrade any more: the next one restarts it.
    rm /var/lib/weir/upgrade.sock
    pid=$(of_unit MainPID)
else
    dpkg --install "$work/next.deb"
fi
grep -q '# mine' $config || fail "an upgrade has lost a change of the configuration"
dpkg --force-confdef --force-confold --install "$work/other.deb"
if has_systemd; then
    until_so is_another "$pid"
    is_ready || fail "the gateway is not ready after its restart"
    rm -r /run/systemd/system/weir.service.d
    systemctl daemon-reload
fi
grep -q '# mine' $config || fail "a new configuration has replaced the changed one"
grep -q '# new' $config.dpkg-dist || fail "the new configuration is nowhere"
same "the configuration after an upgrade" "$(mode $config)" "root:weir 640"
[ -s /var/lib/weir/devices.db ] || fail "an upgrade has lost the store"

echo "== remove"
dpkg --remove weir
if has_systemd; then ! systemctl --quiet is-active weir || fail "the gateway still runs"; fi
[ ! -e /usr/bin/weir ] || fail "the program is still there"
grep -q '# mine' $config || fail "the removal has lost the configuration"
[ -s /var/lib/weir/devices.db ] || fail "the removal has lost the store"

echo "== purge"
dpkg --purge weir
for path in /etc/weir /var/lib/weir /usr/share/doc/weir /var/log/weir; do
    [ ! -e $path ] || fail "the purge has left $path"
done
! getent passwd weir >/dev/null || fail "the purge has left the user"
! getent group weir >/dev/null || fail "the purge has left the group"

echo "== a configuration that nobody has changed"
dpkg --install "$package"
dpkg --install "$work/other.deb"
grep -q '# new' $config || fail "an upgrade has left the old configuration"
dpkg --purge weir
[ ! -e /etc/weir ] || fail "the purge has left /etc/weir"
echo "installed, started, upgraded, removed and purged"
