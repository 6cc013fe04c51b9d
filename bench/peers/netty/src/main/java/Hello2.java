import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import io.netty.channel.ChannelHandler.Sharable;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInboundHandlerAdapter;
import io.netty.handler.codec.http2.DefaultHttp2DataFrame;
import io.netty.handler.codec.http2.DefaultHttp2Headers;
import io.netty.handler.codec.http2.DefaultHttp2HeadersFrame;
import io.netty.handler.codec.http2.Http2Headers;
import io.netty.handler.codec.http2.Http2HeadersFrame;
import io.netty.util.AsciiString;
import io.netty.util.ReferenceCountUtil;

/** Answers requests of HTTP/2, stream by stream on the connection's own pipeline: no channel for each stream. */
@Sharable
final class Hello2 extends ChannelInboundHandlerAdapter {
    static final Hello2 SHARED = new Hello2();

    private static final ByteBuf GREETING =
            Unpooled.unreleasableBuffer(Unpooled.directBuffer().writeBytes(Hello1.GREETING)).asReadOnly();
    private static final AsciiString STATUS_OK = AsciiString.cached("200");
    private static final AsciiString STATUS_NOT_FOUND = AsciiString.cached("404");
    private static final AsciiString TYPE = AsciiString.cached("content-type");
    private static final AsciiString LENGTH = AsciiString.cached("content-length");
    private static final AsciiString DATE = AsciiString.cached("date");
    private static final AsciiString TEXT = AsciiString.cached("text/plain");
    private static final AsciiString GREETING_BYTES = AsciiString.cached(Integer.toString(Hello1.GREETING.length));
    private static final AsciiString PATH = AsciiString.cached("/rest/hello");

    @Override
    public void channelRead(ChannelHandlerContext context, Object message) {
        if (message instanceof Http2HeadersFrame request && request.isEndStream()) {
            answer(context, request);
        }
        ReferenceCountUtil.release(message);
    }

    private static void answer(ChannelHandlerContext context, Http2HeadersFrame request) {
        boolean known = PATH.contentEquals(request.headers().path());
        Http2Headers headers = new DefaultHttp2Headers(false, 4);
        headers.status(known ? STATUS_OK : STATUS_NOT_FOUND);
        if (known) {
            headers.add(TYPE, TEXT).add(LENGTH, GREETING_BYTES).add(DATE, Hello1.now());
        }
        context.write(new DefaultHttp2HeadersFrame(headers, !known).stream(request.stream()));
        if (known) {
            context.write(new DefaultHttp2DataFrame(GREETING.duplicate(), true).stream(request.stream()));
        }
    }

    @Override
    public void channelReadComplete(ChannelHandlerContext context) {
        context.flush();
    }

    @Override
    public void exceptionCaught(ChannelHandlerContext context, Throwable cause) {
        context.close();
    }
}
