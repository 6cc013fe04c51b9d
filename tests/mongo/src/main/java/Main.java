import de.bwaldvogel.mongo.MongoDatabase;
import de.bwaldvogel.mongo.MongoServer;
import de.bwaldvogel.mongo.MongoVersion;
import de.bwaldvogel.mongo.backend.AbstractMongoBackend;
import de.bwaldvogel.mongo.backend.Index;
import de.bwaldvogel.mongo.backend.IndexKey;
import de.bwaldvogel.mongo.backend.h2.H2Backend;
import de.bwaldvogel.mongo.backend.h2.H2Database;
import de.bwaldvogel.mongo.backend.memory.MemoryBackend;
import de.bwaldvogel.mongo.backend.memory.MemoryDatabase;
import java.util.List;

/**
 * A server of MongoDB's protocol for tests: PORT [FILE]. Without a file it keeps everything in memory; with one it
 * writes once a second and at its end, which SIGTERM brings about.
 */
public class Main {
    public static void main(String[] arguments) {
        int port = Integer.parseInt(arguments[0]);
        AbstractMongoBackend backend = arguments.length > 1 ? inFile(arguments[1]) : inMemory();
        backend.version(new Version());
        MongoServer server = new MongoServer(backend);
        // It closes the backend too, and with it the file.
        Runtime.getRuntime().addShutdownHook(new Thread(server::shutdownNow));
        try {
            server.bind("127.0.0.1", port);
        } catch (RuntimeException taken) {
            System.exit(1);
        }
        System.out.println("ready");
    }

    private static AbstractMongoBackend inMemory() {
        return new MemoryBackend() {
            @Override
            public MemoryDatabase openOrCreateDatabase(String name) {
                return new MemoryDatabase(name, getCursorRegistry()) {
                    @Override
                    protected Index<Integer> openOrCreateUniqueIndex(
                            String collection, String index, List<IndexKey> keys, boolean sparse) {
                        return ById.orAsItIs(
                            super.openOrCreateUniqueIndex(collection, index, keys, sparse), keys);
                    }
                };
            }
        };
    }

    private static AbstractMongoBackend inFile(String file) {
        return new H2Backend(file) {
            @Override
            protected MongoDatabase openOrCreateDatabase(String name) {
                return new H2Database(name, getMvStore(), getCursorRegistry()) {
                    @Override
                    protected Index<Object> openOrCreateUniqueIndex(
                            String collection, String index, List<IndexKey> keys, boolean sparse) {
                        return ById.orAsItIs(
                            super.openOrCreateUniqueIndex(collection, index, keys, sparse), keys);
                    }
                };
            }
        };
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
