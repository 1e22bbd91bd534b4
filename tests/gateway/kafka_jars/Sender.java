import java.io.PrintWriter;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/** The producer of soak/senders.py by Java's client: java -cp jars Sender.java ADDRESS NAME FOLDER */
public class Sender {
    static final int PARTITIONS = 3, MOST_QUEUED = 50_000;

    public static void main(String[] arguments) throws Exception {
        String name = arguments[1];
        Path stop = Path.of(arguments[2], name + ".stop");
        Properties config = new Properties();
        config.put("bootstrap.servers", arguments[0]);
        config.put("enable.idempotence", true);
        config.put("max.in.flight.requests.per.connection", 5);
        // many small batches, so that several of a partition are always under way
        config.put("batch.size", 500);
        config.put("linger.ms", 1);
        config.put("reconnect.backoff.max.ms", 200);
        // a client that gives a record up leaves a gap in its numbers, which the gateway must refuse
        config.put("delivery.timeout.ms", 3_600_000);
        AtomicLong told = new AtomicLong();
        long sent = 0;
        try (PrintWriter notes = new PrintWriter(Files.newBufferedWriter(Path.of(arguments[2], name + ".results")));
                KafkaProducer<byte[], byte[]> producer =
                    new KafkaProducer<>(config, new ByteArraySerializer(), new ByteArraySerializer())) {
            ProcessHandle parent = ProcessHandle.current().parent().orElseThrow();
            while (parent.isAlive() && !Files.exists(stop)) {
                for (int some = 0; some < 10 && sent - told.get() < MOST_QUEUED; some++) {
                    long number = sent++;
                    byte[] value = (name + ":" + number).getBytes(StandardCharsets.UTF_8);
                    producer.send(new ProducerRecord<>("events", (int) (number % PARTITIONS), null, value), (at, error) -> {
                        told.incrementAndGet();
                        // a batch has many of these, and the whole lines must be there if this process is killed
                        synchronized (notes) {
                            notes.println(error == null ? "ack " + number + " " + at.offset() : "error " + error);
                            notes.flush();
                        }
                    });
                }
                Thread.sleep(10);
            }
            producer.flush();
            notes.println("sent " + sent);
        }
    }
}
