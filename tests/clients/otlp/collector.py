"""A collector for tests: takes OTLP over HTTP, and prints each span as a line of JSON.

Decodes with the messages of the package opentelemetry-proto. It prints its port first. It answers
the first request with 503, so that the sender tries again.
"""

import http.server
import json
import sys

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


class Collector(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    refusals = 1

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        if Collector.refusals > 0:
            Collector.refusals -= 1
            return self.answer(503, b"", {"retry-after": "0"})
        if self.path != "/v1/traces" or self.headers["content-type"] != "application/x-protobuf":
            return self.answer(400, b"", {})
        request = ExportTraceServiceRequest.FromString(body)
        for resource_spans in request.resource_spans:
            resource = texts(resource_spans.resource.attributes)
            for scope_spans in resource_spans.scope_spans:
                for span in scope_spans.spans:
                    print(json.dumps(line(resource, scope_spans.scope, span)), flush=True)
        answer = ExportTraceServiceResponse()
        self.answer(200, answer.SerializeToString(), {"content-type": "application/x-protobuf"})

    def answer(self, status, body, headers):
        self.send_response(status)
        for name, value in {**headers, "content-length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def texts(attributes):
    return {attribute.key: attribute.value.string_value for attribute in attributes}


def line(resource, scope, span):
    return {
        "service": resource["service.name"],
        "scope": scope.name,
        "trace": span.trace_id.hex(),
        "span": span.span_id.hex(),
        "parent": span.parent_span_id.hex(),
        "name": span.name,
        "kind": span.kind,
        "nanos": span.end_time_unix_nano - span.start_time_unix_nano,
        "attributes": texts(span.attributes),
        "status": span.status.code,
    }


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
print(server.server_port, flush=True)
server.serve_forever()
