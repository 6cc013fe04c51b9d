import de.bwaldvogel.mongo.MongoServer;
import de.bwaldvogel.mongo.MongoVersion;
import de.bwaldvogel.mongo.backend.AbstractMongoBackend;
import de.bwaldvogel.mongo.backend.h2.H2Backend;
import de.bwaldvogel.mongo.backend.memory.MemoryBackend;
import java.util.List;

/**
 * A server of MongoDB's protocol for tests: PORT [FILE]. Without a file it keeps everything in memory; with one it
 * writes once a second and at its end, which SIGTERM brings about.
 */
public class Main {
    public static void main(String[] arguments) {
        int port = Integer.parseInt(arguments[0]);
        AbstractMongoBackend backend =
            arguments.length > 1 ? new H2Backend(arguments[1]) : new MemoryBackend();
        backend.version(new Version());
        MongoServer server = new MongoServer(backend);
        // It closes the backend too, and with it the file.
        Runtime.getRuntime().addShutdownHook(new Thread(server::shutdownNow));
        server.bind("127.0.0.1", port);
        System.out.println("ready");
    }

    /** What drivers of today ask for; the server's own says that it is older. */
    private static class Version implements MongoVersion {
        public List<Integer> getVersionArray() {
            return List.of(7, 0, 0);
        }

        public int getWireVersion() {
            return 21;
        }
    }
}
