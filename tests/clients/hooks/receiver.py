"""A receiver of notices: receiver.py PORT DIRECTORY SECRET.

It writes each request to DIRECTORY/heard as a line of JSON, then answers 204. While there is a file
DIRECTORY/refuse, it writes nothing and answers 503.
"""

import hashlib
import hmac
import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PORT, DIRECTORY, SECRET = int(sys.argv[1]), sys.argv[2], sys.argv[3].encode()
HEARD = os.path.join(DIRECTORY, "heard")
REFUSE = os.path.join(DIRECTORY, "refuse")
LOCK = threading.Lock()


def is_signed(header, body):
    members = dict(member.split("=", 1) for member in (header or "t=,v1=").split(","))
    signed = members["t"].encode() + b"." + body
    expected = hmac.new(SECRET, signed, hashlib.sha256).hexdigest()
    return hmac.compare_digest(expected, members["v1"])


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        if os.path.exists(REFUSE):
            self.send_response(503)
            self.send_header("content-length", "0")
            self.end_headers()
            return
        line = json.dumps({
            "path": self.path,
            "type": self.headers["content-type"],
            "is_signed": is_signed(self.headers["weir-signature"], body),
            "body": json.loads(body),
        })
        with LOCK, open(HEARD, "a") as heard:
            heard.write(line + "\n")
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        pass


# What a killed one was writing has no end; it has not been answered.
if os.path.exists(HEARD):
    with open(HEARD, "rb") as heard:
        whole = heard.read()
    with open(HEARD, "wb") as heard:
        heard.write(whole[: whole.rfind(b"\n") + 1])
ThreadingHTTPServer.allow_reuse_address = True
ThreadingHTTPServer(("127.0.0.1", PORT), Handler).serve_forever()
