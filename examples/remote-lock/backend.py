"""The backend: locks ask it who may enter, and it opens them.

    python3 backend.py                serves the calls of locks
    python3 backend.py open LOCK WHO  opens a lock
    python3 backend.py call LOCK M    calls any method of a lock
"""

import json
import os
import sys
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import quote

PORT = int(os.environ.get("PORT", "3000"))
ADMIN = os.environ.get("ADMIN", "http://127.0.0.1:7090")
BADGES = {"17": "lock-1"}


class Doors(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        badge = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
        # The gateway has authenticated the device. Only the gateway may reach this server.
        may = BADGES.get(badge) == self.headers["weir-device"]
        known = self.path == "/rpc/doors/may-enter"
        answer = (b"yes" if may else b"no") if known else b""
        self.send_response(200 if known else 404)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


def call(lock: str, method: str, text: str) -> str:
    """Calls a lock, and waits for its answer for at most two seconds."""
    body = json.dumps({"method": method, "text": text, "deadline_ms": 2000}).encode()
    url = f"{ADMIN}/v1/devices/{quote(lock, safe='')}/call"
    request = urllib.request.Request(url, body, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request) as answer:
            return json.load(answer)["text"]
    except urllib.error.HTTPError as refused:
        problem = json.load(refused)
        return f"{refused.code} {problem.get('device_code', problem['title'])}"


match sys.argv[1:]:
    case ["open", lock, who]:
        print(call(lock, "lock/open", who))
    case ["call", lock, method]:
        print(call(lock, method, ""))
    case _:
        server = ThreadingHTTPServer(("127.0.0.1", PORT), Doors)
        print(f"doors on port {PORT}", flush=True)
        server.serve_forever()
