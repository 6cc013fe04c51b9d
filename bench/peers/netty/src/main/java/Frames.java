import io.netty.buffer.ByteBuf;
import io.netty.buffer.ByteBufAllocator;
import io.netty.handler.codec.CorruptedFrameException;
import java.nio.charset.StandardCharsets;

/** The messages of weir.v1 that the comparison needs, read from and written to buffers without objects between. */
final class Frames {
    /** The first byte of a message: number of the kind, and "length follows". */
    static final int HELLO = 1 << 3 | 2;
    static final int PING = 2 << 3 | 2;
    private static final int WELCOME = 1 << 3 | 2;
    private static final int PONG = 2 << 3 | 2;
    private static final int PUSH = 3 << 3 | 2;
    private static final int SUBSCRIBED = 5 << 3 | 2;
    private static final int FIXED64 = 1;
    private static final int BYTES = 2;

    private Frames() {}

    /** What matters of a `Hello`. */
    static final class Hello {
        String device = "";
        int heartbeatMs;
        String topic;
    }

    /** A varint; -1: it is not complete. */
    static long length(ByteBuf bytes) {
        long value = 0;
        for (int shift = 0; shift < 35; shift += 7) {
            if (!bytes.isReadable()) {
                return -1;
            }
            int next = bytes.readUnsignedByte();
            value |= (long) (next & 127) << shift;
            if (next < 128) {
                return value;
            }
        }
        throw new CorruptedFrameException("a length of more than five bytes");
    }

    /** Reads a `Hello`, behind its first byte. */
    static Hello hello(ByteBuf bytes) {
        Hello hello = new Hello();
        int end = end(bytes);
        while (bytes.readerIndex() < end) {
            int tag = bytes.readUnsignedByte();
            switch (tag) {
                case 1 << 3 | BYTES -> hello.device = text(bytes);
                case 4 << 3 -> hello.heartbeatMs = (int) length(bytes);
                case 5 << 3 | BYTES -> hello.topic = subscribe(bytes);
                default -> skip(bytes, tag);
            }
        }
        return hello;
    }

    private static String subscribe(ByteBuf bytes) {
        String topic = "";
        int end = end(bytes);
        while (bytes.readerIndex() < end) {
            int tag = bytes.readUnsignedByte();
            if (tag == (1 << 3 | BYTES)) {
                topic = text(bytes);
            } else {
                skip(bytes, tag);
            }
        }
        return topic;
    }

    private static int end(ByteBuf bytes) {
        int length = (int) length(bytes);
        return bytes.readerIndex() + length;
    }

    private static String text(ByteBuf bytes) {
        int length = (int) length(bytes);
        return bytes.readCharSequence(length, StandardCharsets.UTF_8).toString();
    }

    private static void skip(ByteBuf bytes, int tag) {
        switch (tag & 7) {
            case 0 -> length(bytes);
            case FIXED64 -> bytes.skipBytes(8);
            case BYTES -> bytes.skipBytes((int) length(bytes));
            default -> throw new CorruptedFrameException("a field of kind " + (tag & 7));
        }
    }

    /** The answer to a `Ping`: all of it but the first byte, which is the same. */
    static ByteBuf pong(ByteBufAllocator alloc, ByteBuf bytes, int end) {
        int length = end - bytes.readerIndex();
        ByteBuf out = alloc.directBuffer(length + 6);
        varint(out, length + 1L);
        return out.writeByte(PONG).writeBytes(bytes, length);
    }

    static ByteBuf welcome(ByteBufAllocator alloc, long connection, int heartbeatMs) {
        long now = System.currentTimeMillis();
        int inner = 9 + 1 + size(heartbeatMs) + 1 + size(now);
        ByteBuf out = begin(alloc, WELCOME, inner);
        out.writeByte(1 << 3 | FIXED64).writeLongLE(connection);
        varint(out.writeByte(2 << 3), heartbeatMs);
        varint(out.writeByte(3 << 3), now);
        return out;
    }

    static ByteBuf subscribed(ByteBufAllocator alloc, String topic, long epoch, long offset) {
        int position = 9 + 1 + size(offset);
        byte[] name = topic.getBytes(StandardCharsets.UTF_8);
        ByteBuf out = begin(alloc, SUBSCRIBED, 1 + size(name.length) + name.length + 1 + size(position) + position);
        varint(out.writeByte(1 << 3 | BYTES), name.length);
        out.writeBytes(name);
        varint(out.writeByte(2 << 3 | BYTES), position);
        out.writeByte(1 << 3 | FIXED64).writeLongLE(epoch);
        varint(out.writeByte(2 << 3), offset);
        return out;
    }

    private static ByteBuf begin(ByteBufAllocator alloc, int kind, int inner) {
        int whole = 1 + size(inner) + inner;
        ByteBuf out = alloc.directBuffer(whole + 5);
        varint(out, whole);
        varint(out.writeByte(kind), inner);
        return out;
    }

    /** A whole frame with a message of a topic. */
    static byte[] push(String topic, byte[] payload, long offset) {
        byte[] name = topic.getBytes(StandardCharsets.UTF_8);
        int inner = 1 + size(name.length) + name.length + 1 + size(payload.length) + payload.length
                + 9 + 1 + size(offset);
        ByteBuf out = begin(ByteBufAllocator.DEFAULT, PUSH, inner);
        varint(out.writeByte(1 << 3 | BYTES), name.length);
        out.writeBytes(name);
        varint(out.writeByte(2 << 3 | BYTES), payload.length);
        out.writeBytes(payload);
        out.writeByte(6 << 3 | FIXED64).writeLongLE(offset);
        varint(out.writeByte(7 << 3), offset);
        byte[] frame = new byte[out.readableBytes()];
        out.readBytes(frame).release();
        return frame;
    }

    private static void varint(ByteBuf out, long value) {
        while (value > 127) {
            out.writeByte((int) value & 127 | 128);
            value >>>= 7;
        }
        out.writeByte((int) value);
    }

    private static int size(long value) {
        int size = 1;
        while ((value >>>= 7) > 0) {
            size++;
        }
        return size;
    }
}
