import io.netty.buffer.ByteBuf;
import io.netty.channel.ChannelHandler.Sharable;
import io.netty.channel.ChannelHandlerContext;
import io.netty.channel.ChannelInboundHandlerAdapter;
import io.netty.channel.socket.DatagramPacket;
import io.netty.util.AsciiString;
import java.nio.charset.StandardCharsets;
import java.util.HashSet;
import java.util.Set;

/** Answers calls: `{"pt":"TOKEN","count":NUMBER}` gets `{"answer":true,"pt":"TOKEN","count":NUMBER}`. */
@Sharable
final class Datagrams extends ChannelInboundHandlerAdapter {
    private static final byte[] START = "{\"pt\":\"".getBytes(StandardCharsets.US_ASCII);
    private static final byte[] BETWEEN = "\",\"count\":".getBytes(StandardCharsets.US_ASCII);
    private static final byte[] MARK = "{\"answer\":true,".getBytes(StandardCharsets.US_ASCII);

    private final Set<AsciiString> tokens = new HashSet<>();

    /** Accepts the tokens that the load generator uses, so many of them. */
    Datagrams(int tokens) {
        for (int index = 0; index < tokens; index++) {
            this.tokens.add(AsciiString.of(String.format("bench-token-%010d", index)));
        }
    }

    @Override
    public void channelRead(ChannelHandlerContext context, Object message) {
        DatagramPacket packet = (DatagramPacket) message;
        ByteBuf call = packet.content();
        if (isValid(call)) {
            int length = call.readableBytes() - 1;
            ByteBuf answer = context.alloc().directBuffer(MARK.length + length);
            answer.writeBytes(MARK).writeBytes(call, call.readerIndex() + 1, length);
            context.write(new DatagramPacket(answer, packet.sender()), context.voidPromise());
        }
        packet.release();
    }

    private boolean isValid(ByteBuf call) {
        int at = call.readerIndex();
        if (!matches(call, at, START)) {
            return false;
        }
        int from = at + START.length;
        int quote = call.indexOf(from, call.writerIndex(), (byte) '"');
        if (quote < 0 || !matches(call, quote, BETWEEN)) {
            return false;
        }
        byte[] token = new byte[quote - from];
        call.getBytes(from, token);
        int last = call.writerIndex() - 1;
        int digit = quote + BETWEEN.length;
        if (digit == last || call.getByte(last) != '}') {
            return false;
        }
        for (; digit < last; digit++) {
            byte letter = call.getByte(digit);
            if (letter < '0' || letter > '9') {
                return false;
            }
        }
        return tokens.contains(new AsciiString(token, false));
    }

    private static boolean matches(ByteBuf bytes, int from, byte[] expected) {
        if (bytes.writerIndex() - from < expected.length) {
            return false;
        }
        for (int at = 0; at < expected.length; at++) {
            if (bytes.getByte(from + at) != expected[at]) {
                return false;
            }
        }
        return true;
    }

    @Override
    public void channelReadComplete(ChannelHandlerContext context) {
        context.flush();
    }

    @Override
    public void exceptionCaught(ChannelHandlerContext context, Throwable cause) {
        cause.printStackTrace();
    }
}
