import io.netty.buffer.ByteBuf;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInboundHandlerAdapter;
import io.netty.channel.ChannelPipeline;
import io.netty.handler.codec.http.DefaultHttpHeadersFactory;
import io.netty.handler.codec.http.HttpResponseEncoder;
import io.netty.handler.codec.http.HttpDecoderConfig;
import io.netty.handler.codec.http.HttpRequestDecoder;
import io.netty.handler.codec.http2.Http2FrameCodecBuilder;
import io.netty.handler.codec.http2.Http2Settings;

/** Waits for the first bytes of a connection: `PRI` begins HTTP/2, and anything else HTTP/1.1. */
final class HttpStart extends ChannelInboundHandlerAdapter {
    private static final int STREAMS_MAX = 1024;

    private final Topics topics;

    HttpStart(Topics topics) {
        this.topics = topics;
    }

    @Override
    public void channelRead(ChannelHandlerContext context, Object message) {
        ByteBuf bytes = (ByteBuf) message;
        ChannelPipeline pipeline = context.pipeline();
        // The first segment of a client holds more than these three letters.
        if (bytes.readableBytes() >= 3 && bytes.getMedium(bytes.readerIndex()) == 0x505249) {
            Http2Settings settings = Http2Settings.defaultSettings().maxConcurrentStreams(STREAMS_MAX);
            pipeline.addLast(Http2FrameCodecBuilder.forServer()
                    .initialSettings(settings)
                    .validateHeaders(false)
                    .build());
            pipeline.addLast(Hello2.SHARED);
        } else {
            addHttp1(pipeline, topics);
        }
        context.fireChannelRead(message);
        pipeline.remove(this);
    }

    static void addHttp1(ChannelPipeline pipeline, Topics topics) {
        pipeline.addLast(new HttpRequestDecoder(new HttpDecoderConfig()
                .setHeadersFactory(DefaultHttpHeadersFactory.headersFactory().withValidation(false))));
        pipeline.addLast(new HttpResponseEncoder());
        pipeline.addLast(new Hello1(topics));
    }
}
