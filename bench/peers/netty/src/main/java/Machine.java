import com.sun.management.ThreadMXBean;
import java.lang.management.GarbageCollectorMXBean;
import java.lang.management.ManagementFactory;

/** What the Java machine tells of itself. */
final class Machine {
    private Machine() {}

    /** Collects all garbage, so that memory shows what is in use. */
    static String collect() {
        System.gc();
        return figures();
    }

    /** Bytes that live threads have allocated, collections, and the time that they took. */
    static String figures() {
        ThreadMXBean threads = (ThreadMXBean) ManagementFactory.getThreadMXBean();
        long allocated = 0;
        for (long bytes : threads.getThreadAllocatedBytes(threads.getAllThreadIds())) {
            allocated += Math.max(bytes, 0);
        }
        long count = 0;
        long millis = 0;
        for (GarbageCollectorMXBean collector : ManagementFactory.getGarbageCollectorMXBeans()) {
            count += Math.max(collector.getCollectionCount(), 0);
            millis += Math.max(collector.getCollectionTime(), 0);
        }
        return "{\"allocated_bytes\":" + allocated + ",\"collections\":" + count + ",\"collection_ms\":" + millis + "}";
    }
}
