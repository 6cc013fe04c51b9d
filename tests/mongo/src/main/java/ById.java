import de.bwaldvogel.mongo.MongoCollection;
import de.bwaldvogel.mongo.backend.Index;
import de.bwaldvogel.mongo.backend.IndexKey;
import de.bwaldvogel.mongo.bson.Document;
import java.util.List;

/**
 * An index of _id that serves each query with an _id, as that of MongoDB does, and not only those with nothing else: an
 * update under a condition would look at the whole collection. What it finds is held against the whole query after it.
 */
class ById<P> extends Index<P> {
    private final Index<P> index;

    static <P> Index<P> orAsItIs(Index<P> index, List<IndexKey> keys) {
        boolean isOfId = keys.size() == 1 && keys.get(0).getKey().equals("_id");
        return isOfId ? new ById<>(index, keys) : index;
    }

    private ById(Index<P> index, List<IndexKey> keys) {
        super(index.getName(), keys, false);
        this.index = index;
    }

    private static Document idOf(Document query) {
        return new Document("_id", query.get("_id"));
    }

    @Override
    public boolean canHandle(Document query) {
        return query.containsKey("_id") && index.canHandle(idOf(query));
    }

    @Override
    public Iterable<P> getPositions(Document query) {
        return index.getPositions(idOf(query));
    }

    @Override
    public P getPosition(Document document) {
        return index.getPosition(document);
    }

    @Override
    public void checkAdd(Document document, MongoCollection<P> collection) {
        index.checkAdd(document, collection);
    }

    @Override
    public void add(Document document, P position, MongoCollection<P> collection) {
        index.add(document, position, collection);
    }

    @Override
    public P remove(Document document) {
        return index.remove(document);
    }

    @Override
    public long getCount() {
        return index.getCount();
    }

    @Override
    public long getDataSize() {
        return index.getDataSize();
    }

    @Override
    public void checkUpdate(Document before, Document after, MongoCollection<P> collection) {
        index.checkUpdate(before, after, collection);
    }

    @Override
    public void updateInPlace(
            Document before, Document after, P position, MongoCollection<P> collection) {
        index.updateInPlace(before, after, position, collection);
    }

    @Override
    public boolean isUnique() {
        return index.isUnique();
    }

    @Override
    public void drop() {
        index.drop();
    }
}
