import io.netty.bootstrap.Bootstrap;
import io.netty.bootstrap.ServerBootstrap;
import io.netty.buffer.ByteBufAllocator;
import io.netty.channel.Channel;
import io.netty.channel.ChannelHandler;
import io.netty.channel.ChannelInitializer;
import io.netty.channel.ChannelOption;
import io.netty.channel.ChannelPipeline;
import io.netty.channel.FixedRecvByteBufAllocator;
import io.netty.channel.IoEventLoopGroup;
import io.netty.channel.MultiThreadIoEventLoopGroup;
import io.netty.channel.WriteBufferWaterMark;
import io.netty.channel.epoll.EpollChannelOption;
import io.netty.channel.epoll.EpollDatagramChannel;
import io.netty.channel.epoll.EpollIoHandler;
import io.netty.channel.epoll.EpollServerSocketChannel;
import io.netty.handler.ssl.OpenSsl;
import io.netty.handler.ssl.SslContext;
import io.netty.util.Version;
import java.lang.management.GarbageCollectorMXBean;
import java.lang.management.ManagementFactory;
import java.net.InetSocketAddress;
import java.util.HashMap;
import java.util.Map;
import java.util.StringJoiner;

/**
 * A Netty server that speaks as much of Weir's protocols as a comparison needs: frames of weir.v1 over TCP and TLS,
 * publishing and `GET /rest/hello` over HTTP/1.1 and HTTP/2, and calls by datagram.
 *
 * <p>Arguments: `describe` prints versions and settings. Otherwise pairs of a name and a value: addresses (`tcp`,
 * `tls`, `http`, `https`, `udp`, `admin`), PEM files (`chain`, `key`), and the number of valid tokens (`tokens`).
 */
public final class Main {
    private static final int BACKLOG = 4096;
    /** As Weir's by default. */
    private static final int DATAGRAM_BUFFER_BYTES = 2 << 20;
    private static final int DATAGRAM_BYTES_MAX = 1500;
    private static final int DATAGRAMS_AT_ONCE = 64;
    /** A connection that has more unsent bytes than the second is not written to until it has fewer than the first. */
    private static final WriteBufferWaterMark WATERMARKS = new WriteBufferWaterMark(32 << 10, 128 << 10);

    private final IoEventLoopGroup loops;
    private final int threads = Runtime.getRuntime().availableProcessors();
    private final Topics topics;

    private Main() {
        loops = new MultiThreadIoEventLoopGroup(threads, EpollIoHandler.newFactory());
        topics = new Topics(loops);
    }

    public static void main(String[] arguments) throws Exception {
        if (arguments.length == 1 && arguments[0].equals("describe")) {
            System.out.println(describe());
            return;
        }
        Map<String, String> settings = new HashMap<>();
        for (int at = 0; at + 1 < arguments.length; at += 2) {
            settings.put(arguments[at], arguments[at + 1]);
        }
        new Main().start(settings);
        System.out.println("ready");
    }

    private void start(Map<String, String> settings) throws Exception {
        if (settings.containsKey("tcp")) {
            listen(settings.get("tcp"), new Plain(pipeline -> pipeline.addLast(new Device(topics))));
        }
        if (settings.containsKey("http")) {
            listen(settings.get("http"), new Plain(pipeline -> pipeline.addLast(new HttpStart(topics))));
        }
        if (settings.containsKey("admin")) {
            listen(settings.get("admin"), new Plain(pipeline -> HttpStart.addHttp1(pipeline, topics)));
        }
        if (settings.containsKey("tls")) {
            SslContext tls = Tls.context(settings.get("chain"), settings.get("key"), "weir.v1");
            listen(settings.get("tls"), new Secure(tls, pipeline -> pipeline.addLast(new Device(topics))));
        }
        if (settings.containsKey("https")) {
            SslContext tls = Tls.context(settings.get("chain"), settings.get("key"), "h2", "http/1.1");
            listen(settings.get("https"), new Secure(tls, pipeline -> pipeline.addLast(new HttpStart(topics))));
        }
        if (settings.containsKey("udp")) {
            answerDatagrams(address(settings.get("udp")), Integer.parseInt(settings.getOrDefault("tokens", "0")));
        }
    }

    private void listen(String where, ChannelHandler children) throws InterruptedException {
        new ServerBootstrap()
                .group(loops)
                .channel(EpollServerSocketChannel.class)
                .option(ChannelOption.SO_BACKLOG, BACKLOG)
                .childOption(ChannelOption.TCP_NODELAY, true)
                .childOption(ChannelOption.WRITE_BUFFER_WATER_MARK, WATERMARKS)
                .childHandler(children)
                .bind(address(where))
                .sync();
    }

    /** A socket for each loop; the kernel shares the senders out among them. */
    private void answerDatagrams(InetSocketAddress where, int tokens) throws InterruptedException {
        Bootstrap bootstrap = new Bootstrap()
                .group(loops)
                .channel(EpollDatagramChannel.class)
                .option(EpollChannelOption.SO_REUSEPORT, true)
                .option(ChannelOption.SO_RCVBUF, DATAGRAM_BUFFER_BYTES)
                .option(ChannelOption.SO_SNDBUF, DATAGRAM_BUFFER_BYTES)
                .option(EpollChannelOption.MAX_DATAGRAM_PAYLOAD_SIZE, DATAGRAM_BYTES_MAX)
                .option(ChannelOption.RECVBUF_ALLOCATOR,
                        new FixedRecvByteBufAllocator(DATAGRAM_BYTES_MAX * DATAGRAMS_AT_ONCE))
                .handler(new Datagrams(tokens));
        for (int loop = 0; loop < threads; loop++) {
            bootstrap.bind(where).sync();
        }
    }

    private static InetSocketAddress address(String text) {
        int colon = text.lastIndexOf(':');
        return new InetSocketAddress(text.substring(0, colon), Integer.parseInt(text.substring(colon + 1)));
    }

    private static String describe() {
        StringJoiner collectors = new StringJoiner(" + ");
        for (GarbageCollectorMXBean collector : ManagementFactory.getGarbageCollectorMXBeans()) {
            collectors.add(collector.getName());
        }
        String netty = Version.identify().get("netty-transport").artifactVersion();
        StringJoiner lines = new StringJoiner("\n");
        lines.add("netty " + netty + ", Java " + System.getProperty("java.version"));
        lines.add("native epoll, a loop for each processor; " + OpenSsl.versionString() + " by tcnative");
        lines.add("allocator " + ByteBufAllocator.DEFAULT.getClass().getSimpleName() + "; " + collectors);
        lines.add("Java options " + ManagementFactory.getRuntimeMXBean().getInputArguments());
        lines.add("one encoding of a message, shared by retainedDuplicate; watermarks "
                + WATERMARKS.low() + " and " + WATERMARKS.high() + " B; one flush for all that a read brings");
        lines.add("datagrams by recvmmsg and sendmmsg, " + DATAGRAMS_AT_ONCE + " at once");
        return lines.toString();
    }

    private interface Fill {
        void into(ChannelPipeline pipeline);
    }

    /** Makes the pipelines of plain connections. */
    private static final class Plain extends ChannelInitializer<Channel> {
        private final Fill fill;

        Plain(Fill fill) {
            this.fill = fill;
        }

        @Override
        protected void initChannel(Channel channel) {
            fill.into(channel.pipeline());
        }
    }

    /** Makes the pipelines of TLS connections. */
    private static final class Secure extends ChannelInitializer<Channel> {
        private final SslContext tls;
        private final Fill fill;

        Secure(SslContext tls, Fill fill) {
            this.tls = tls;
            this.fill = fill;
        }

        @Override
        protected void initChannel(Channel channel) {
            channel.pipeline().addLast(tls.newHandler(channel.alloc()));
            fill.into(channel.pipeline());
        }
    }
}
