"""Posts large bodies over sockets, each written whole before anything is read, and prints what became of each.

usage: upload.py BYTES CA_FILE URL...
"""

import socket
import ssl
import sys
from urllib.parse import urlsplit

PATIENCE_SECS = 60
PIECE = b" " * 65536


def post(url, length, ca_file):
    """The status, or where it failed."""
    parts = urlsplit(url)
    conn = socket.create_connection((parts.hostname, parts.port), PATIENCE_SECS)
    if parts.scheme == "https":
        context = ssl.create_default_context(cafile=ca_file)
        conn = context.wrap_socket(conn, server_hostname=parts.hostname)
    head = (
        f"POST {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {length}\r\n\r\n"
    )
    try:
        conn.sendall(head.encode())
        for begin in range(0, length, len(PIECE)):
            conn.sendall(PIECE[: length - begin])
    except OSError as error:
        return f"writing: {error!r}"
    try:
        return conn.recv(4096).decode().split(" ")[1]
    except (OSError, IndexError) as error:
        return f"reading: {error!r}"


for target in sys.argv[3:]:
    print(post(target, int(sys.argv[1]), sys.argv[2]))
