import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.net.Socket;
import java.nio.ByteBuffer;
import java.util.*;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.message.FetchResponseData;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.record.internal.MemoryRecords;
import org.apache.kafka.common.record.internal.MutableRecordBatch;
import org.apache.kafka.common.requests.*;

/** The batches of a partition as they are on the wire, which no consumer shows: markers, and all that is around records. */
final class Batches implements Iterator<MutableRecordBatch>, AutoCloseable {
    /** The last one that names topics, and not their ids. */
    private static final short VERSION = 12;
    private static final int SIZE_BYTES = 1 << 20;
    private final TopicPartition partition;
    private final long end;
    private final Socket socket;
    private Iterator<MutableRecordBatch> fetched = Collections.emptyIterator();
    private long next;

    Batches(Node leader, TopicPartition partition, long start, long end) throws Exception {
        this.partition = partition;
        this.end = end;
        next = start;
        socket = new Socket(leader.host(), leader.port());
    }

    @Override
    public boolean hasNext() {
        return next < end;
    }

    @Override
    public MutableRecordBatch next() {
        while (!fetched.hasNext()) {
            try {
                fetched = fetch().batches().iterator();
            } catch (java.io.IOException error) {
                throw new java.io.UncheckedIOException(error);
            }
        }
        MutableRecordBatch batch = fetched.next();
        next = batch.nextOffset();
        return batch;
    }

    /** All its bytes. */
    static ByteBuffer bytes(MutableRecordBatch batch) {
        ByteBuffer bytes = ByteBuffer.allocate(batch.sizeInBytes());
        batch.writeTo(bytes);
        return bytes.flip();
    }

    private MemoryRecords fetch() throws java.io.IOException {
        var part = new FetchRequest.PartitionData(Uuid.ZERO_UUID, next, -1, SIZE_BYTES, Optional.empty());
        var request = FetchRequest.Builder.forConsumer(VERSION, 500, 1, Map.of(partition, part)).build(VERSION);
        var header = new RequestHeader(ApiKeys.FETCH, VERSION, "batches", 0);
        ByteBuffer asked = request.serializeWithHeader(header);
        var out = new DataOutputStream(socket.getOutputStream());
        out.writeInt(asked.remaining());
        out.write(asked.array(), asked.arrayOffset() + asked.position(), asked.remaining());
        out.flush();
        var in = new DataInputStream(socket.getInputStream());
        byte[] answer = new byte[in.readInt()];
        in.readFully(answer);
        var response = (FetchResponse) AbstractResponse.parseResponse(ByteBuffer.wrap(answer), header);
        FetchResponseData.PartitionData found = response.data().responses().get(0).partitions().get(0);
        Lab.expect(found.errorCode() == 0, partition + " at offset " + next + ": error " + found.errorCode());
        var records = (MemoryRecords) FetchResponse.recordsOrFail(found);
        Lab.expect(records.sizeInBytes() > 0, partition + " has nothing at offset " + next + ", before its end " + end);
        return records;
    }

    @Override
    public void close() throws Exception {
        socket.close();
    }
}
