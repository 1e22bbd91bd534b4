import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Callable;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** The stories of the Java client: java -cp JARS:CLASSES Peer ADDRESS ADDRESS-WITH-ACLS PREFIX [STORY...] */
public class Peer {
    /** How long anything may take: the machine may do much else. */
    static final long PATIENCE_MS = 40_000;

    interface Body {
        void run() throws Exception;
    }

    final String address;
    final String secured;
    final String prefix;
    private final List<String> only;

    Peer(String[] arguments) {
        address = arguments[0];
        secured = arguments[1];
        prefix = arguments[2];
        only = Arrays.asList(arguments).subList(3, arguments.length);
    }

    public static void main(String[] arguments) {
        Peer peer = new Peer(arguments);
        new Records(peer).tell();
        new Transactions(peer).tell();
        new Groups(peer).tell();
        new Topics(peer).tell();
        new Cluster(peer).tell();
        new Rights(peer).tell();
        System.out.println("end");
        System.exit(0);
    }

    /** Run a story, and print a line about its end. */
    void story(String name, Body body) {
        if (!only.isEmpty() && !only.contains(name)) {
            return;
        }
        long begun = System.nanoTime();
        try {
            body.run();
            System.out.printf("ok %s %d%n", name, (System.nanoTime() - begun) / 1_000_000);
        } catch (Throwable error) {
            StackTraceElement at = Arrays.stream(error.getStackTrace())
                .filter(each -> each.getFileName() != null && !each.getClassName().contains("."))
                .findFirst().orElse(null);
            System.out.printf("failed %s %s at %s%n", name, String.valueOf(error).replace('\n', ' '), at);
            error.printStackTrace();
        }
    }

    /** A topic of this program alone. */
    String topic(Admin admin, String name, int partitions, Map<String, String> config) throws Exception {
        String full = prefix + "-" + name;
        admin.createTopics(List.of(new NewTopic(full, partitions, (short) 1).configs(config))).all().get();
        until("the topic is seen", () -> {
            try {
                return admin.describeTopics(List.of(full)).allTopicNames().get().get(full).partitions().stream()
                    .allMatch(each -> each.leader() != null);
            } catch (ExecutionException error) {
                return false;
            }
        });
        return full;
    }

    String topic(String name, int partitions) throws Exception {
        try (Admin admin = admin()) {
            return topic(admin, name, partitions, Map.of());
        }
    }

    Properties config(Object... pairs) {
        Properties config = new Properties();
        config.put("bootstrap.servers", address);
        for (int i = 0; i < pairs.length; i += 2) {
            config.put((String) pairs[i], pairs[i + 1]);
        }
        return config;
    }

    Admin admin(Object... pairs) {
        return Admin.create(config(pairs));
    }

    KafkaProducer<String, String> producer(Object... pairs) {
        return new KafkaProducer<>(config(pairs), new StringSerializer(), new StringSerializer());
    }

    KafkaConsumer<String, String> consumer(Object... pairs) {
        Properties config = config("auto.offset.reset", "earliest", "enable.auto.commit", "false");
        config.putAll(config(pairs));
        return new KafkaConsumer<>(config, new StringDeserializer(), new StringDeserializer());
    }

    /** Send values "0", "1", ... to a partition, and wait until all are acknowledged. */
    void send(String topic, int partition, int count) {
        try (KafkaProducer<String, String> producer = producer()) {
            for (int i = 0; i < count; i++) {
                producer.send(new ProducerRecord<>(topic, partition, "k" + i, "" + i));
            }
        }
    }

    /** The values of partitions, until so many have come. */
    List<ConsumerRecord<String, String>> read(KafkaConsumer<String, String> consumer, int count) {
        List<ConsumerRecord<String, String>> found = new ArrayList<>();
        long end = System.currentTimeMillis() + PATIENCE_MS;
        while (found.size() < count && System.currentTimeMillis() < end) {
            consumer.poll(Duration.ofMillis(500)).forEach(found::add);
        }
        return found;
    }

    /** The values of all partitions of a topic, to their ends. */
    List<String> values(String topic, String isolation) {
        List<String> found = new ArrayList<>();
        try (KafkaConsumer<String, String> consumer = consumer("isolation.level", isolation)) {
            List<TopicPartition> all = consumer.partitionsFor(topic).stream()
                .map(each -> new TopicPartition(topic, each.partition())).toList();
            consumer.assign(all);
            consumer.seekToBeginning(all);
            Map<TopicPartition, Long> ends = consumer.endOffsets(all);
            long end = System.currentTimeMillis() + PATIENCE_MS;
            while (ends.entrySet().stream().anyMatch(each -> consumer.position(each.getKey()) < each.getValue())) {
                check(System.currentTimeMillis() < end, "the end is not reached: " + ends);
                consumer.poll(Duration.ofMillis(200)).forEach(each -> found.add(each.value()));
            }
        }
        return found;
    }

    static void check(boolean holds, String otherwise) {
        if (!holds) {
            throw new AssertionError(otherwise);
        }
    }

    static void same(Object found, Object expected) {
        check(expected.equals(found), "expected " + expected + ", found " + found);
    }

    static void sameElements(Collection<?> found, Collection<?> expected) {
        check(found.size() == expected.size() && found.containsAll(expected),
            "expected " + expected + ", found " + found);
    }

    /** The error that a call must end with. */
    static Throwable fails(Class<? extends Throwable> kind, Callable<?> call) throws Exception {
        Object result;
        try {
            result = call.call();
        } catch (Throwable error) {
            Throwable cause = error instanceof ExecutionException ? error.getCause() : error;
            check(kind.isInstance(cause), "expected " + kind.getSimpleName() + ", found " + cause);
            return cause;
        }
        throw new AssertionError("expected " + kind.getSimpleName() + ", found no error: " + result);
    }

    static void until(String what, Callable<Boolean> holds) throws Exception {
        long end = System.currentTimeMillis() + PATIENCE_MS;
        while (!holds.call()) {
            check(System.currentTimeMillis() < end, "not in time: " + what);
            Thread.sleep(50);
        }
    }
}
