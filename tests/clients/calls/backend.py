"""A backend of calls: gRPC on the first port, HTTP/1.1 on the second. It prints what it is asked."""

import http.server
import json
import sys
import threading
import time
from concurrent import futures

import grpc


def tell(**what):
    print(json.dumps(what), flush=True)


class Lines(grpc.GenericRpcHandler):
    """Methods of `test.Lines`; the messages are bytes."""

    def service(self, details):
        method = details.method.removeprefix("/test.Lines/")
        metadata = {key: value for key, value in details.invocation_metadata if isinstance(value, str)}

        def upper(request, context):
            tell(
                method=method,
                device=metadata.get("weir-device"),
                left=context.time_remaining() is not None and context.time_remaining() < 6,
            )
            return request.upper()

        def refuse(request, context):
            context.abort(grpc.StatusCode.NOT_FOUND, "no such line: größe")

        def wait(request, context):
            ended = threading.Event()
            context.add_callback(ended.set)
            tell(waiting=True)
            ended.wait(30)
            tell(ended=True)
            return b""

        known = {"Upper": upper, "Refuse": refuse, "Wait": wait}
        if method in known:
            return grpc.unary_unary_rpc_method_handler(known[method])


class Web(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path.endswith("/sleep"):
            time.sleep(float(body))
        if self.path.endswith("/who"):
            body = f"{self.headers['weir-device']} {self.headers['weir-method']}".encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments):
        pass


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 1024
    daemon_threads = True


grpc_port, http_port = sys.argv[1:]
server = grpc.server(futures.ThreadPoolExecutor(8), handlers=(Lines(),))
server.add_insecure_port(f"127.0.0.1:{grpc_port}")
server.start()
web = Server(("127.0.0.1", int(http_port)), Web)
tell(ready=True)
web.serve_forever()
