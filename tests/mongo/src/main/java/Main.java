import de.bwaldvogel.mongo.MongoCollection;
import de.bwaldvogel.mongo.MongoDatabase;
import de.bwaldvogel.mongo.MongoServer;
import de.bwaldvogel.mongo.MongoVersion;
import de.bwaldvogel.mongo.backend.AbstractMongoBackend;
import de.bwaldvogel.mongo.backend.CollectionOptions;
import de.bwaldvogel.mongo.backend.Index;
import de.bwaldvogel.mongo.backend.IndexKey;
import de.bwaldvogel.mongo.backend.QueryParameters;
import de.bwaldvogel.mongo.backend.QueryResult;
import de.bwaldvogel.mongo.backend.h2.H2Backend;
import de.bwaldvogel.mongo.backend.h2.H2Collection;
import de.bwaldvogel.mongo.backend.h2.H2Database;
import de.bwaldvogel.mongo.backend.memory.MemoryBackend;
import de.bwaldvogel.mongo.backend.memory.MemoryCollection;
import de.bwaldvogel.mongo.backend.memory.MemoryDatabase;
import de.bwaldvogel.mongo.bson.Document;
import java.util.ArrayList;
import java.util.List;
import org.h2.mvstore.MVMap;

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
                    protected MemoryCollection openOrCreateCollection(
                            String collection, CollectionOptions options) {
                        return new MemoryCollection(this, collection, options, cursorRegistry) {
                            @Override
                            public synchronized QueryResult handleQuery(QueryParameters query) {
                                return copied(super.handleQuery(query));
                            }
                        };
                    }

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
                    protected MongoCollection<Object> openOrCreateCollection(
                            String collection, CollectionOptions options) {
                        // Named as it names them itself, for what it drops.
                        String full = getFullCollectionNamespace(collection);
                        MVMap<Object, Document> data = getMvStore().openMap("databases." + full);
                        MVMap<String, Object> meta = getMvStore().openMap("meta." + full);
                        return new H2Collection(
                                this, collection, options, data, meta, cursorRegistry) {
                            // For updates too, which put theirs back: else the thread that
                            // writes the file would meet one that is being changed.
                            @Override
                            protected QueryResult queryDocuments(
                                    Document query, Document order, int skip, int limit,
                                    int batch, Document fields) {
                                return copied(super.queryDocuments(
                                    query, order, skip, limit, batch, fields));
                            }
                        };
                    }

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

    /**
     * Documents as they are now: a collection gives out its own, which the next update would change while they are
     * being sent. The client would get half of each, or its connection closed.
     */
    private static QueryResult copied(QueryResult found) {
        List<Document> copies = new ArrayList<>();
        for (Document document : found) {
            copies.add(document.cloneDeeply());
        }
        return new QueryResult(copies, found.getCursorId());
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
