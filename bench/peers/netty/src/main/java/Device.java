import io.netty.buffer.ByteBuf;
import io.netty.channel.Channel;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInboundHandlerAdapter;
import io.netty.handler.codec.CorruptedFrameException;

/** A connection of a device: reads frames, answers `Hello` and `Ping`. It holds no buffer unless a frame is cut. */
final class Device extends ChannelInboundHandlerAdapter {
    private static final int FRAME_BYTES_MAX = 64 << 10;

    private final Topics topics;
    private ChannelHandlerContext context;
    private String id;
    private Topics.Topic topic;
    private int place = -1;
    private int connectedPlace = -1;
    private long readAt;
    private ByteBuf partial;
    private boolean answered;

    Device(Topics topics) {
        this.topics = topics;
    }

    @Override
    public void handlerAdded(ChannelHandlerContext context) {
        this.context = context;
        readAt = System.nanoTime();
    }

    @Override
    public void channelActive(ChannelHandlerContext context) {
        connectedPlace = topics.connected(context.executor()).add(this);
    }

    @Override
    public void channelRead(ChannelHandlerContext context, Object message) {
        ByteBuf bytes = (ByteBuf) message;
        readAt = System.nanoTime();
        if (partial != null) {
            bytes = partial.writeBytes(bytes);
            ((ByteBuf) message).release();
            partial = null;
        }
        try {
            while (takeFrame(bytes)) {}
            if (bytes.isReadable()) {
                partial = context.alloc().buffer(Math.max(256, bytes.readableBytes())).writeBytes(bytes);
            }
        } finally {
            bytes.release();
        }
    }

    /** Handles the next frame; false: it is not complete. */
    private boolean takeFrame(ByteBuf bytes) {
        int start = bytes.readerIndex();
        long length = Frames.length(bytes);
        if (length > FRAME_BYTES_MAX) {
            throw new CorruptedFrameException("a frame of " + length + " bytes");
        }
        if (length < 0 || bytes.readableBytes() < length) {
            bytes.readerIndex(start);
            return false;
        }
        int end = bytes.readerIndex() + (int) length;
        int tag = bytes.readUnsignedByte();
        if (tag == Frames.PING) {
            context.write(Frames.pong(context.alloc(), bytes, end), context.voidPromise());
            answered = true;
        } else if (tag == Frames.HELLO && id == null) {
            welcome(Frames.hello(bytes));
        } else {
            throw new CorruptedFrameException("a message that this server does not know: " + tag);
        }
        bytes.readerIndex(end);
        return true;
    }

    private void welcome(Frames.Hello hello) {
        id = hello.device;
        topics.enter(id, this);
        context.write(Frames.welcome(context.alloc(), topics.nextConnection(), hello.heartbeatMs));
        if (hello.topic != null) {
            topic = topics.of(hello.topic);
            place = topics.members(topic, context.executor()).add(this);
            topic.count(1);
            context.write(Frames.subscribed(context.alloc(), topic.name, topic.epoch, topic.offset()));
        }
        answered = true;
    }

    /** One flush for all answers. */
    @Override
    public void channelReadComplete(ChannelHandlerContext context) {
        if (answered) {
            answered = false;
            context.flush();
        }
    }

    /** Sends a message, unless too much waits already. */
    void send(ByteBuf frame) {
        Channel channel = context.channel();
        if (channel.isWritable()) {
            context.writeAndFlush(frame.retainedDuplicate(), context.voidPromise());
        } else {
            // It has not read for long: as Weir closes what stalls.
            channel.close();
        }
    }

    void evict() {
        context.channel().close();
    }

    void endIfSilent(long now, long longest) {
        if (now - readAt > longest) {
            context.channel().close();
        }
    }

    @Override
    public void channelInactive(ChannelHandlerContext context) {
        if (connectedPlace >= 0) {
            Device moved = topics.connected(context.executor()).remove(connectedPlace);
            if (moved != null) {
                moved.connectedPlace = connectedPlace;
            }
        }
        if (place >= 0) {
            Device moved = topics.members(topic, context.executor()).remove(place);
            if (moved != null) {
                moved.place = place;
            }
            topic.count(-1);
            place = -1;
        }
        if (id != null) {
            topics.leave(id, this);
        }
        if (partial != null) {
            partial.release();
            partial = null;
        }
    }

    @Override
    public void exceptionCaught(ChannelHandlerContext context, Throwable cause) {
        context.close();
    }
}
