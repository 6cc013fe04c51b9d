"""The backend of the chat: it serves the page, and signs a token for each user."""

import base64
import hashlib
import hmac
import json
import os
import time
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

HERE = Path(__file__).parent
SDK = HERE / "../../sdk/js/dist"
PORT = int(os.environ.get("PORT", "3000"))
GATEWAY = os.environ.get("GATEWAY", "http://127.0.0.1:8080")
TOKEN_SECONDS = 3600
# Only these files are served, so that nobody reads the secret.
FILES = {"/": HERE / "index.html", "/chat.js": HERE / "chat.js"}
FILES |= {f"/sdk/{file.name}": file for file in SDK.glob("*.js")}


def part(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def sign(claims: dict) -> str:
    """A JWT (RFC 7519) with HS256, as `[auth.jwt]` of weir.toml wants it."""
    secret = (HERE / "secret").read_bytes().strip()
    head = {"alg": "HS256", "typ": "JWT"}
    signed = ".".join(part(json.dumps(each).encode()) for each in (head, claims))
    return f"{signed}.{part(hmac.new(secret, signed.encode(), hashlib.sha256).digest())}"


class Backend(SimpleHTTPRequestHandler):
    def translate_path(self, path: str) -> str:
        return str(FILES.get(path.split("?")[0], HERE / "missing"))

    def do_POST(self) -> None:
        length = min(int(self.headers.get("Content-Length", 0)), 1000)
        # Here everybody is believed. Your backend knows its users by their sessions.
        user = str(json.loads(self.rfile.read(length))["user"])[:64]
        end = int(time.time()) + TOKEN_SECONDS
        claims = {"iss": "web-chat", "aud": "weir", "sub": user, "exp": end}
        claims["topics"] = ["chat/*"]
        answer = json.dumps({"token": sign(claims), "gateway": GATEWAY}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


if __name__ == "__main__":
    print(f"http://127.0.0.1:{PORT}/?user=ada", flush=True)
    ThreadingHTTPServer(("127.0.0.1", PORT), Backend).serve_forever()
