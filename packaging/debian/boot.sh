#!/bin/sh
# Runs check.sh where systemd is the first process: in a container whose files are a throw-away layer
# over those of this machine. Run as root: boot.sh PACKAGE.deb
set -eu
here=$(dirname "$0")
place=$(mktemp -d)
mount -t tmpfs tmpfs "$place"
# systemd-nspawn leaves its own mounts below.
trap 'umount --recursive "$place"; rmdir "$place"' EXIT
mkdir "$place/changes" "$place/work" "$place/root"
layers="lowerdir=/,upperdir=$place/changes,workdir=$place/work"
mount -t overlay overlay -o "$layers" "$place/root"

root=$place/root
# Other services would only take time. policy-rc.d forbids to start services in images of containers.
rm -rf "$root"/etc/systemd/system/*.wants "$root/usr/sbin/policy-rc.d" "$root/etc/machine-id"
mkdir -p "$root/check" "$root/etc/systemd/system/multi-user.target.wants"
cp "$1" "$root/check/weir.deb"
cp "$here/check.sh" "$here/hold.py" "$root/check/"
cat >"$root/etc/systemd/system/check.service" <<END
[Unit]
After=multi-user.target
[Service]
Type=oneshot
ExecStart=sh -c 'sh /check/check.sh /check/weir.deb && touch /check/passed'
StandardOutput=append:/check/log
StandardError=append:/check/log
ExecStopPost=systemctl --no-block poweroff
END
ln -s ../check.service "$root/etc/systemd/system/multi-user.target.wants/"
ln -sf /lib/systemd/system/multi-user.target "$root/etc/systemd/system/default.target"
timeout 600 systemd-nspawn --quiet --directory "$root" --boot --register=no --keep-unit \
    --private-network --console=pipe </dev/null || true
cat "$root/check/log"
[ -e "$root/check/passed" ]
