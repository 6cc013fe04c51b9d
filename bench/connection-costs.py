#!/usr/bin/env python3
"""What connections cost the kernel, and what refusals cost the gateway: constants of docs/scaling.md.

usage: bench/connection-costs.py target/release/weir

It opens 12,000 connections over loopback, so that the kernel has 24,000 sockets. Memory is the
growth of the kernel's slabs, by socket. Then it kills the gateway: the CPU time until its process
is gone goes to resetting the connections. At last each connection is refused, because there is
room for one only.
"""

import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time

CONNECTIONS = 12_000


def start(weir, directory, limits):
    """Starts a gateway, and waits until it listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        addr = free.getsockname()
    config = os.path.join(directory, "weir.toml")
    with open(config, "w") as file:
        file.write(f"""
[listen]
tcp = []
tls = ["{addr[0]}:{addr[1]}"]
http = []
udp = []
admin = ""
[connection]
hello_timeout = "10m"
[tls]
development_directory = "{directory}"
[limits]
{limits}
""")
    quiet = subprocess.DEVNULL
    child = subprocess.Popen([weir, "--config", config], stdout=quiet, stderr=quiet)
    while True:
        try:
            socket.create_connection(addr).close()
            return child, addr
        except ConnectionRefusedError:
            time.sleep(0.05)


def connect(addr):
    """One connection; some thousands come from each address."""
    connection = socket.socket()
    connection.bind((f"127.2.{connection.fileno() // 8_000}.1", 0))
    connection.connect(addr)
    return connection


def cpu(child):
    """CPU time of a process in seconds."""
    with open(f"/proc/{child.pid}/stat") as stat:
        fields = stat.read().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def slabs():
    """Bytes of the kernel's slabs: all, and those that it cannot give back."""
    with open("/proc/meminfo") as lines:
        fields = dict(line.split(":") for line in lines)
    return [int(fields[name].split()[0]) * 1024 for name in ("Slab", "SUnreclaim")]


def main():
    weir = sys.argv[1]
    open_files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, open_files))
    with tempfile.TemporaryDirectory() as directory:
        child, addr = start(weir, directory, "")
        time.sleep(1)
        before, used = slabs(), cpu(child)
        connections = [connect(addr) for _ in range(CONNECTIONS)]
        time.sleep(1)
        print(f"accepting: {(cpu(child) - used) / CONNECTIONS * 1e6:.1f} us of CPU time each")
        grown = [(now - then) / CONNECTIONS / 2 for now, then in zip(slabs(), before)]
        print(f"memory: {grown[0]:.0f} B a socket, of which {grown[1]:.0f} B cannot be given back")
        used = cpu(child)
        child.send_signal(signal.SIGKILL)
        usage = os.wait4(child.pid, 0)[2]
        took = usage.ru_utime + usage.ru_stime - used
        print(f"killed: {took / CONNECTIONS * 1e6:.1f} us of CPU time for each reset")
        del connections

        child, addr = start(weir, directory, "unsettled_connections_max = 1")
        first = connect(addr)
        time.sleep(1)
        used = cpu(child)
        for _ in range(CONNECTIONS):
            connect(addr).close()
        time.sleep(1)
        print(f"refusing: {(cpu(child) - used) / CONNECTIONS * 1e6:.1f} us of CPU time each")
        first.close()
        child.kill()
        child.wait()


main()
