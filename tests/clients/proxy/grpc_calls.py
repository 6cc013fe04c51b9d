"""A gRPC service on a free port, and a client that calls it through the gateway."""

import sys
from concurrent import futures

import grpc


def unary(request, context):
    context.send_initial_metadata((("x-first", "1"),))
    context.set_trailing_metadata((("x-last", "2"),))
    return b"<" + request + b">"


def count(request, context):
    for number in range(int(request)):
        yield str(number).encode() * 1000
    context.set_trailing_metadata((("x-count", request.decode()),))


def fail(request, context):
    context.set_trailing_metadata((("x-why", "never"),))
    context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not today: käse")


def fail_late(request, context):
    yield b"1"
    context.abort(grpc.StatusCode.DATA_LOSS, "broken")


def total(requests, context):
    return str(sum(len(request) for request in requests)).encode()


def echo(requests, context):
    for request in requests:
        yield request


handlers = grpc.method_handlers_generic_handler("test.Calls", {
    "Unary": grpc.unary_unary_rpc_method_handler(unary),
    "Count": grpc.unary_stream_rpc_method_handler(count),
    "Fail": grpc.unary_unary_rpc_method_handler(fail),
    "FailLate": grpc.unary_stream_rpc_method_handler(fail_late),
    "Total": grpc.stream_unary_rpc_method_handler(total),
    "Echo": grpc.stream_stream_rpc_method_handler(echo),
})
server = grpc.server(futures.ThreadPoolExecutor(8))
server.add_generic_rpc_handlers((handlers,))
print(server.add_insecure_port("127.0.0.1:0"), flush=True)
server.start()
gateway = sys.stdin.readline().strip()

with grpc.insecure_channel(gateway) as channel:
    called, call = channel.unary_unary("/test.Calls/Unary").with_call(b"hello", timeout=60)
    assert called == b"<hello>", called
    assert ("x-first", "1") in call.initial_metadata(), call.initial_metadata()
    assert ("x-last", "2") in call.trailing_metadata(), call.trailing_metadata()
    large = b"x" * 1_000_000
    assert channel.unary_unary("/test.Calls/Unary")(large, timeout=60) == b"<" + large + b">"
    print("unary", flush=True)

    call = channel.unary_stream("/test.Calls/Count")(b"100", timeout=60)
    counted = list(call)
    assert counted == [str(number).encode() * 1000 for number in range(100)]
    assert ("x-count", "100") in call.trailing_metadata(), call.trailing_metadata()
    print("stream", flush=True)

    try:
        channel.unary_unary("/test.Calls/Fail")(b"", timeout=60)
        raise SystemExit("it does not fail")
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.FAILED_PRECONDITION, error
        assert error.details() == "not today: käse", error.details()
        assert ("x-why", "never") in error.trailing_metadata(), error.trailing_metadata()
    call = channel.unary_stream("/test.Calls/FailLate")(b"", timeout=60)
    assert next(call) == b"1"
    try:
        next(call)
        raise SystemExit("it does not fail late")
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.DATA_LOSS, error
    try:
        channel.unary_unary("/test.Calls/Nothing")(b"", timeout=60)
        raise SystemExit("there is nothing")
    except grpc.RpcError as error:
        assert error.code() == grpc.StatusCode.UNIMPLEMENTED, error
    print("errors", flush=True)

    pieces = [b"y" * 10_000] * 50
    assert channel.stream_unary("/test.Calls/Total")(iter(pieces), timeout=60) == b"500000"
    assert list(channel.stream_stream("/test.Calls/Echo")(iter(pieces), timeout=60)) == pieces
    print("both ways", flush=True)

server.stop(None).wait()
print("done", flush=True)
