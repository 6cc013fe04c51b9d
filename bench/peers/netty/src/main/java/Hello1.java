import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInboundHandlerAdapter;
import io.netty.handler.codec.http.DefaultFullHttpResponse;
import io.netty.handler.codec.http.DefaultHttpHeadersFactory;
import io.netty.handler.codec.http.HttpContent;
import io.netty.handler.codec.http.HttpHeaderNames;
import io.netty.handler.codec.http.HttpHeaders;
import io.netty.handler.codec.http.HttpMethod;
import io.netty.handler.codec.http.HttpRequest;
import io.netty.handler.codec.http.HttpResponseStatus;
import io.netty.handler.codec.http.HttpVersion;
import io.netty.handler.codec.http.LastHttpContent;
import io.netty.util.AsciiString;
import java.nio.charset.StandardCharsets;
import java.time.ZoneOffset;
import java.time.ZonedDateTime;
import java.time.format.DateTimeFormatter;

/** Answers requests of HTTP/1.1: the greeting, publishing, and what the comparison asks of the Java machine. */
final class Hello1 extends ChannelInboundHandlerAdapter {
    static final byte[] GREETING = "Hello World".getBytes(StandardCharsets.US_ASCII);
    private static final ByteBuf GREETING_BUF =
            Unpooled.unreleasableBuffer(Unpooled.directBuffer().writeBytes(GREETING)).asReadOnly();
    private static final AsciiString GREETING_BYTES = AsciiString.cached(Integer.toString(GREETING.length));
    private static final AsciiString TEXT = AsciiString.cached("text/plain");
    private static final AsciiString JSON = AsciiString.cached("application/json");
    private static final int BODY_BYTES_MAX = 128 << 10;
    private static final long SECOND_NS = 1_000_000_000L;

    private static volatile AsciiString date = AsciiString.EMPTY_STRING;
    private static volatile long dateAt = System.nanoTime() - SECOND_NS;

    private final Topics topics;
    private HttpMethod method;
    private String path;
    private ByteBuf body;

    Hello1(Topics topics) {
        this.topics = topics;
    }

    @Override
    public void channelRead(ChannelHandlerContext context, Object message) {
        if (message instanceof HttpRequest request) {
            method = request.method();
            path = request.uri();
        }
        if (message instanceof HttpContent content) {
            if (content.content().isReadable()) {
                take(context, content.content());
            }
            content.release();
        }
        if (message instanceof LastHttpContent) {
            answer(context);
        }
    }

    private void take(ChannelHandlerContext context, ByteBuf bytes) {
        if (body == null) {
            body = context.alloc().buffer(bytes.readableBytes());
        }
        if (body.readableBytes() + bytes.readableBytes() > BODY_BYTES_MAX) {
            context.close();
            return;
        }
        body.writeBytes(bytes);
    }

    private void answer(ChannelHandlerContext context) {
        if (HttpMethod.GET.equals(method) && path.equals("/rest/hello")) {
            write(context, HttpResponseStatus.OK, TEXT, GREETING_BUF.duplicate(), GREETING_BYTES);
            return;
        }
        String text = body == null ? "" : body.toString(StandardCharsets.UTF_8);
        if (body != null) {
            body.release();
            body = null;
        }
        String answer = switch (method + " " + path) {
            case "POST /v1/publish" -> publish(text);
            case "POST /collect" -> Machine.collect();
            case "GET /machine" -> Machine.figures();
            default -> null;
        };
        HttpResponseStatus status = answer == null ? HttpResponseStatus.NOT_FOUND : HttpResponseStatus.OK;
        byte[] bytes = (answer == null ? "" : answer).getBytes(StandardCharsets.UTF_8);
        write(context, status, JSON, Unpooled.wrappedBuffer(bytes), AsciiString.of(Integer.toString(bytes.length)));
    }

    /** `{"topic":"…","text":"…"}`, in which nothing is escaped. */
    private String publish(String json) {
        String topic = member(json, "\"topic\":\"");
        String text = member(json, "\"text\":\"");
        if (topic == null || text == null) {
            return null;
        }
        return "{\"connections\":" + topics.publish(topic, text) + "}";
    }

    private static String member(String json, String start) {
        int from = json.indexOf(start);
        int to = from < 0 ? -1 : json.indexOf('"', from + start.length());
        return to < 0 ? null : json.substring(from + start.length(), to);
    }

    private static void write(
            ChannelHandlerContext context, HttpResponseStatus status, AsciiString type, ByteBuf content, AsciiString length) {
        HttpHeaders headers = DefaultHttpHeadersFactory.headersFactory().withValidation(false).newHeaders();
        headers.set(HttpHeaderNames.CONTENT_TYPE, type);
        headers.set(HttpHeaderNames.CONTENT_LENGTH, length);
        headers.set(HttpHeaderNames.DATE, now());
        HttpHeaders trailers = DefaultHttpHeadersFactory.trailersFactory().withValidation(false).newHeaders();
        context.write(
                new DefaultFullHttpResponse(HttpVersion.HTTP_1_1, status, content, headers, trailers),
                context.voidPromise());
    }

    /** The date, made once a second. */
    static AsciiString now() {
        long now = System.nanoTime();
        if (now - dateAt >= SECOND_NS) {
            date = AsciiString.of(DateTimeFormatter.RFC_1123_DATE_TIME.format(ZonedDateTime.now(ZoneOffset.UTC)));
            dateAt = now;
        }
        return date;
    }

    /** One flush for all answers to a read. */
    @Override
    public void channelReadComplete(ChannelHandlerContext context) {
        context.flush();
    }

    @Override
    public void channelInactive(ChannelHandlerContext context) {
        if (body != null) {
            body.release();
            body = null;
        }
    }

    @Override
    public void exceptionCaught(ChannelHandlerContext context, Throwable cause) {
        context.close();
    }
}
