"""Runs the ExecStart of a unit as its user, with the environment that systemd gives to it.

It is for machines where systemd is not the first process. The sandbox of the unit is not applied.
The gateway listens on free ports, so that another one on this machine does not matter.
"""

import os
import pwd
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import urllib.request


def free_port(kind):
    with socket.socket(socket.AF_INET, kind) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


listen = {key: f"127.0.0.1:{free_port(socket.SOCK_STREAM)}" for key in ("TCP", "HTTP", "ADMIN")}
listen["UDP"] = f"127.0.0.1:{free_port(socket.SOCK_DGRAM)}"
unit = dict(line.strip().split("=", 1) for line in open(sys.argv[1]) if "=" in line and line[0] != "#")
user = pwd.getpwnam(unit["User"])
with tempfile.TemporaryDirectory() as place:
    os.chmod(place, 0o755)
    path = os.path.join(place, "notify")
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(path)
    os.chmod(path, 0o777)
    manager.settimeout(60)
    environment = {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "NOTIFY_SOCKET": path,
        "WATCHDOG_USEC": "3000000",
        "STATE_DIRECTORY": "/var/lib/" + unit["StateDirectory"],
    }
    environment |= {f"WEIR_LISTEN_{key}": addr for key, addr in listen.items()}
    weir = subprocess.Popen(
        shlex.split(unit["ExecStart"]),
        env=environment, user=user.pw_uid, group=user.pw_gid, extra_groups=[],
        umask=int(unit["UMask"], 8), cwd="/", stdout=subprocess.DEVNULL,
    )
    try:
        heard = [manager.recv(4096).decode() for _ in range(3)]
        assert heard == ["READY=1\n", "WATCHDOG=1\n", "WATCHDOG=1\n"], heard
        with urllib.request.urlopen(f"http://{listen['ADMIN']}/readyz", timeout=10) as ready:
            assert ready.status == 200
        reload = subprocess.run(
            shlex.split(unit["ExecReload"]), env=environment, user=user.pw_uid, group=user.pw_gid,
            extra_groups=[], cwd="/", capture_output=True, text=True,
        )
        assert reload.returncode == 0, reload
        weir.send_signal(signal.SIGTERM)
        while not (last := manager.recv(4096).decode()).startswith("STOPPING=1"):
            pass
        assert weir.wait(60) == 0, weir.returncode
    finally:
        weir.kill()
print("ready, alive, reloaded, stopped")
