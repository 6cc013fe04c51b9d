import io.netty.buffer.ByteBuf;
import io.netty.buffer.Unpooled;
import io.netty.channel.IoEventLoopGroup;
import io.netty.util.concurrent.EventExecutor;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicLong;

/** All topics with their members, by loop: a loop alone touches its own. Also the devices that are connected. */
final class Topics {
    /** Connections that say nothing for longer end, as with a heartbeat. */
    private static final long SILENCE_MAX_S = 30 * 60;
    private static final long SWEEP_EVERY_S = 60;

    private final ConcurrentHashMap<String, Topic> topics = new ConcurrentHashMap<>();
    private final ConcurrentHashMap<String, Device> devices = new ConcurrentHashMap<>();
    private final Map<EventExecutor, Members> connected = new HashMap<>();
    private final List<EventExecutor> loops = new ArrayList<>();
    private final AtomicLong connections = new AtomicLong();

    /** A topic: its members, and the number of its last message. */
    static final class Topic {
        final String name;
        final long epoch = System.nanoTime();
        private final Map<EventExecutor, Members> members = new HashMap<>();
        private long offset;
        private int count;

        private Topic(String name, List<EventExecutor> loops) {
            this.name = name;
            loops.forEach(loop -> members.put(loop, new Members()));
        }

        synchronized long offset() {
            return offset;
        }

        synchronized void count(int more) {
            count += more;
        }
    }

    /** Members on one loop. A device keeps its place, so that it leaves at once. */
    static final class Members {
        private Device[] all = new Device[8];
        private int size;

        int add(Device device) {
            if (size == all.length) {
                all = java.util.Arrays.copyOf(all, size * 2);
            }
            all[size] = device;
            return size++;
        }

        /** Takes out the member at a place; returns the one that has it now, if any. */
        Device remove(int place) {
            Device last = all[--size];
            all[size] = null;
            if (place == size) {
                return null;
            }
            all[place] = last;
            return last;
        }

        Device get(int place) {
            return all[place];
        }

        int size() {
            return size;
        }
    }

    Topics(IoEventLoopGroup group) {
        group.forEach(loops::add);
        for (EventExecutor loop : loops) {
            connected.put(loop, new Members());
            loop.scheduleAtFixedRate(() -> sweep(connected.get(loop)), SWEEP_EVERY_S, SWEEP_EVERY_S, TimeUnit.SECONDS);
        }
    }

    long nextConnection() {
        return connections.incrementAndGet();
    }

    Topic of(String name) {
        return topics.computeIfAbsent(name, missing -> new Topic(missing, loops));
    }

    Members members(Topic topic, EventExecutor loop) {
        return topic.members.get(loop);
    }

    Members connected(EventExecutor loop) {
        return connected.get(loop);
    }

    void enter(String id, Device device) {
        Device before = devices.put(id, device);
        if (before != null) {
            before.evict();
        }
    }

    void leave(String id, Device device) {
        devices.remove(id, device);
    }

    /** Encodes a message once and sends it to all members of its topic; returns how many there are. */
    int publish(String name, String text) {
        Topic topic = topics.get(name);
        if (topic == null) {
            return 0;
        }
        byte[] payload = text.getBytes(StandardCharsets.UTF_8);
        synchronized (topic) {
            topic.offset++;
            byte[] bytes = Frames.push(topic.name, payload, topic.offset);
            for (EventExecutor loop : loops) {
                ByteBuf frame = Unpooled.directBuffer(bytes.length).writeBytes(bytes);
                if (loop.inEventLoop()) {
                    fanOut(topic.members.get(loop), frame);
                } else {
                    loop.execute(() -> fanOut(topic.members.get(loop), frame));
                }
            }
            return topic.count;
        }
    }

    private static void fanOut(Members members, ByteBuf frame) {
        for (int place = 0; place < members.size(); place++) {
            members.get(place).send(frame);
        }
        frame.release();
    }

    private static void sweep(Members members) {
        long now = System.nanoTime();
        for (int place = members.size() - 1; place >= 0; place--) {
            members.get(place).endIfSilent(now, TimeUnit.SECONDS.toNanos(SILENCE_MAX_S));
        }
    }
}
