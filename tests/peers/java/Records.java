import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Future;
import java.util.stream.IntStream;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.RecordsToDelete;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetOutOfRangeException;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidTimestampException;
import org.apache.kafka.common.errors.RecordTooLargeException;
import org.apache.kafka.common.record.TimestampType;

/** Producers without transactions, and consumers without groups. */
class Records {
    private final Peer peer;

    Records(Peer peer) {
        this.peer = peer;
    }

    void tell() {
        peer.story("produce-defaults", this::defaults);
        for (String codec : List.of("gzip", "snappy", "lz4", "zstd")) {
            peer.story("produce-" + codec, () -> compressed(codec));
        }
        peer.story("produce-acks", this::acks);
        peer.story("produce-in-flight", this::inFlight);
        peer.story("produce-not-idempotent", this::notIdempotent);
        peer.story("record-too-large", this::tooLarge);
        peer.story("log-append-time", this::logAppendTime);
        peer.story("create-time-bounds", this::createTimeBounds);
        peer.story("topic-created-again", this::createdAgain);
        peer.story("partitions-added", this::partitionsAdded);
        peer.story("seek-by-time", this::seekByTime);
        peer.story("consumer-lookups", this::lookups);
        peer.story("fetch-out-of-range", this::outOfRange);
        peer.story("fetch-many-partitions", this::manyPartitions);
        peer.story("compacted-topic", this::compacted);
        peer.story("delete-records", this::deleteRecords);
    }

    private void defaults() throws Exception {
        String topic = peer.topic("defaults", 3);
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (KafkaProducer<String, String> producer = peer.producer()) {
            for (int i = 0; i < 3000; i++) {
                ProducerRecord<String, String> record =
                    new ProducerRecord<>(topic, i % 3, 1_700_000_000_000L + i, "k" + i, "v" + i);
                record.headers().add("n", Integer.toString(i).getBytes(StandardCharsets.UTF_8));
                sent.add(producer.send(record));
            }
        }
        for (int i = 0; i < 3000; i++) {
            Peer.same(sent.get(i).get().offset(), (long) (i / 3));
        }
        try (KafkaConsumer<String, String> consumer = peer.consumer()) {
            consumer.assign(IntStream.range(0, 3).mapToObj(each -> new TopicPartition(topic, each)).toList());
            List<ConsumerRecord<String, String>> found = peer.read(consumer, 3000);
            Peer.same(found.size(), 3000);
            for (ConsumerRecord<String, String> each : found) {
                int i = (int) each.offset() * 3 + each.partition();
                Peer.same(each.key() + each.value() + each.timestamp(), "k" + i + "v" + i + (1_700_000_000_000L + i));
                Peer.same(new String(each.headers().lastHeader("n").value(), StandardCharsets.UTF_8), "" + i);
            }
        }
    }

    private void compressed(String codec) throws Exception {
        String topic = peer.topic(codec, 1);
        try (KafkaProducer<String, String> producer = peer.producer("compression.type", codec, "linger.ms", "20")) {
            for (int i = 0; i < 2000; i++) {
                producer.send(new ProducerRecord<>(topic, 0, null, "a value that is compressed, number " + i));
            }
        }
        List<String> found = peer.values(topic, "read_uncommitted");
        Peer.same(found.size(), 2000);
        Peer.same(found.get(1999), "a value that is compressed, number 1999");
    }

    private void acks() throws Exception {
        String topic = peer.topic("acks", 1);
        for (String acks : List.of("0", "1", "all")) {
            try (KafkaProducer<String, String> producer =
                    peer.producer("acks", acks, "enable.idempotence", "false")) {
                long offset = producer.send(new ProducerRecord<>(topic, 0, null, acks)).get().offset();
                Peer.check(acks.equals("0") == (offset == -1), "the offset with acks=" + acks + " is " + offset);
            }
        }
        Peer.until("all records are there", () -> peer.values(topic, "read_uncommitted").size() == 3);
    }

    private void inFlight() throws Exception {
        String topic = peer.topic("in-flight", 2);
        try (KafkaProducer<String, String> producer =
                peer.producer("linger.ms", "0", "batch.size", "200", "max.in.flight.requests.per.connection", "5")) {
            for (int i = 0; i < 3000; i++) {
                producer.send(new ProducerRecord<>(topic, i % 2, null, "" + i));
            }
        }
        try (KafkaConsumer<String, String> consumer = peer.consumer("max.partition.fetch.bytes", "5000")) {
            consumer.assign(List.of(new TopicPartition(topic, 0), new TopicPartition(topic, 1)));
            List<ConsumerRecord<String, String>> found = peer.read(consumer, 3000);
            Peer.same(found.size(), 3000);
            for (ConsumerRecord<String, String> each : found) {
                Peer.same(each.value(), "" + (each.offset() * 2 + each.partition()));
            }
        }
    }

    private void notIdempotent() throws Exception {
        String topic = peer.topic("not-idempotent", 1);
        try (KafkaProducer<String, String> producer =
                peer.producer("enable.idempotence", "false", "batch.size", "500")) {
            for (int i = 0; i < 2000; i++) {
                producer.send(new ProducerRecord<>(topic, 0, null, "" + i));
            }
        }
        Peer.same(peer.values(topic, "read_uncommitted"), IntStream.range(0, 2000).mapToObj(each -> "" + each).toList());
    }

    private void tooLarge() throws Exception {
        try (Admin admin = peer.admin();
                KafkaProducer<String, String> producer = peer.producer("max.request.size", "10000000")) {
            String topic = peer.topic(admin, "small-records", 1, Map.of("max.message.bytes", "1000"));
            Peer.fails(RecordTooLargeException.class,
                () -> producer.send(new ProducerRecord<>(topic, "x".repeat(2000))).get());
            Peer.same(producer.send(new ProducerRecord<>(topic, "x".repeat(500))).get().offset(), 0L);
        }
    }

    private void logAppendTime() throws Exception {
        try (Admin admin = peer.admin(); KafkaProducer<String, String> producer = peer.producer()) {
            String topic = peer.topic(admin, "append-time", 1, Map.of("message.timestamp.type", "LogAppendTime"));
            long before = System.currentTimeMillis();
            RecordMetadata told = producer.send(new ProducerRecord<>(topic, 0, 1000L, null, "x")).get();
            Peer.check(told.timestamp() >= before, "the producer is told " + told.timestamp());
            try (KafkaConsumer<String, String> consumer = peer.consumer()) {
                consumer.assign(List.of(new TopicPartition(topic, 0)));
                ConsumerRecord<String, String> found = peer.read(consumer, 1).get(0);
                Peer.same(found.timestampType(), TimestampType.LOG_APPEND_TIME);
                Peer.same(found.timestamp(), told.timestamp());
            }
        }
    }

    private void createTimeBounds() throws Exception {
        try (Admin admin = peer.admin(); KafkaProducer<String, String> producer = peer.producer()) {
            String topic = peer.topic(admin, "bounds", 1, Map.of("message.timestamp.after.max.ms", "1000"));
            long later = System.currentTimeMillis() + 86_400_000;
            Peer.fails(InvalidTimestampException.class,
                () -> producer.send(new ProducerRecord<>(topic, 0, later, null, "x")).get());
        }
    }

    private void createdAgain() throws Exception {
        try (Admin admin = peer.admin(); KafkaProducer<String, String> producer = peer.producer("linger.ms", "0")) {
            String topic = peer.topic(admin, "again", 1, Map.of());
            Peer.same(producer.send(new ProducerRecord<>(topic, 0, null, "old")).get().offset(), 0L);
            admin.deleteTopics(List.of(topic)).all().get();
            Peer.until("the topic is gone", () -> !admin.listTopics().names().get().contains(topic));
            peer.topic(admin, "again", 1, Map.of());
            Peer.same(producer.send(new ProducerRecord<>(topic, 0, null, "new")).get().offset(), 0L);
            Peer.same(peer.values(topic, "read_uncommitted"), List.of("new"));
        }
    }

    private void partitionsAdded() throws Exception {
        try (Admin admin = peer.admin();
                KafkaProducer<String, String> producer = peer.producer("metadata.max.age.ms", "500")) {
            String topic = peer.topic(admin, "grown", 1, Map.of());
            producer.send(new ProducerRecord<>(topic, 0, null, "0")).get();
            admin.createPartitions(Map.of(topic, org.apache.kafka.clients.admin.NewPartitions.increaseTo(3))).all()
                .get();
            Peer.same(producer.send(new ProducerRecord<>(topic, 2, null, "2")).get().offset(), 0L);
            Peer.sameElements(peer.values(topic, "read_uncommitted"), List.of("0", "2"));
        }
    }

    private void seekByTime() throws Exception {
        String topic = peer.topic("times", 1);
        TopicPartition place = new TopicPartition(topic, 0);
        try (KafkaProducer<String, String> producer = peer.producer(); KafkaConsumer<String, String> consumer =
                peer.consumer()) {
            for (int i = 0; i < 100; i++) {
                producer.send(new ProducerRecord<>(topic, 0, 1_700_000_000_000L + i * 1000, null, "" + i));
            }
            producer.flush();
            long found = consumer.offsetsForTimes(Map.of(place, 1_700_000_049_500L)).get(place).offset();
            Peer.same(found, 50L);
            Peer.same(consumer.offsetsForTimes(Map.of(place, 1_700_000_049_500L)).get(place).timestamp(),
                1_700_000_050_000L);
            Map<TopicPartition, ?> after = consumer.offsetsForTimes(Map.of(place, 1_800_000_000_000L));
            Peer.check(after.containsKey(place) && after.get(place) == null, "after all records: " + after);
            consumer.assign(List.of(place));
            consumer.seek(place, found);
            List<ConsumerRecord<String, String>> read = peer.read(consumer, 50);
            Peer.same(read.get(0).value() + " " + read.size(), "50 50");
        }
    }

    private void lookups() throws Exception {
        String topic = peer.topic("lookups", 2);
        peer.send(topic, 0, 10);
        TopicPartition first = new TopicPartition(topic, 0);
        TopicPartition second = new TopicPartition(topic, 1);
        try (KafkaConsumer<String, String> consumer = peer.consumer()) {
            Peer.same(consumer.partitionsFor(topic).size(), 2);
            Peer.check(consumer.listTopics().containsKey(topic), "the topic is not listed");
            Peer.same(consumer.beginningOffsets(List.of(first, second)), Map.of(first, 0L, second, 0L));
            Peer.same(consumer.endOffsets(List.of(first, second)), Map.of(first, 10L, second, 0L));
            consumer.assign(List.of(first));
            consumer.seekToEnd(List.of(first));
            Peer.same(consumer.position(first), 10L);
            consumer.seek(first, 4);
            Peer.same(peer.read(consumer, 6).get(0).offset(), 4L);
            Peer.same(consumer.currentLag(first).getAsLong(), 0L);
        }
    }

    private void outOfRange() throws Exception {
        String topic = peer.topic("range", 1);
        peer.send(topic, 0, 5);
        TopicPartition place = new TopicPartition(topic, 0);
        try (KafkaConsumer<String, String> consumer = peer.consumer("auto.offset.reset", "none")) {
            consumer.assign(List.of(place));
            consumer.seek(place, 100);
            Peer.fails(OffsetOutOfRangeException.class, () -> {
                for (int i = 0; i < 100; i++) {
                    consumer.poll(Duration.ofMillis(500));
                }
                return "polled";
            });
        }
    }

    private void manyPartitions() throws Exception {
        String topic = peer.topic("many", 40);
        try (KafkaConsumer<String, String> consumer = peer.consumer("fetch.max.wait.ms", "100");
                KafkaProducer<String, String> producer = peer.producer()) {
            consumer.assign(IntStream.range(0, 40).mapToObj(each -> new TopicPartition(topic, each)).toList());
            Map<Integer, String> newest = new HashMap<>();
            for (int round = 0; round < 5; round++) {
                for (int each = round; each < 40; each += 5) {
                    producer.send(new ProducerRecord<>(topic, each, null, round + "." + each));
                }
                producer.flush();
                for (ConsumerRecord<String, String> each : peer.read(consumer, 8)) {
                    newest.put(each.partition(), each.value());
                }
                // a session leaves these out, and takes them in again
                consumer.pause(List.of(new TopicPartition(topic, round)));
                consumer.poll(Duration.ofMillis(200));
                consumer.resume(consumer.paused());
            }
            Peer.same(newest.size(), 40);
            for (int each = 0; each < 40; each++) {
                Peer.same(newest.get(each), each % 5 + "." + each);
            }
        }
    }

    private void compacted() throws Exception {
        try (Admin admin = peer.admin(); KafkaProducer<String, String> producer = peer.producer()) {
            String topic = peer.topic(admin, "compacted", 1, Map.of("cleanup.policy", "compact"));
            producer.send(new ProducerRecord<>(topic, 0, "k", "v")).get();
            producer.send(new ProducerRecord<>(topic, 0, "k", null)).get();
            Peer.fails(org.apache.kafka.common.InvalidRecordException.class,
                () -> producer.send(new ProducerRecord<>(topic, 0, null, "no key")).get());
        }
    }

    private void deleteRecords() throws Exception {
        String topic = peer.topic("deleted", 1);
        peer.send(topic, 0, 20);
        TopicPartition place = new TopicPartition(topic, 0);
        try (Admin admin = peer.admin(); KafkaConsumer<String, String> consumer = peer.consumer()) {
            long low = admin.deleteRecords(Map.of(place, RecordsToDelete.beforeOffset(7))).lowWatermarks().get(place)
                .get().lowWatermark();
            Peer.same(low, 7L);
            Peer.same(consumer.beginningOffsets(List.of(place)).get(place), 7L);
            consumer.assign(List.of(place));
            consumer.seekToBeginning(List.of(place));
            Peer.same(peer.read(consumer, 13).get(0).offset(), 7L);
            Peer.fails(org.apache.kafka.common.errors.OffsetOutOfRangeException.class,
                () -> admin.deleteRecords(Map.of(place, RecordsToDelete.beforeOffset(21))).all().get());
            admin.deleteRecords(Map.of(place, RecordsToDelete.beforeOffset(-1))).all().get();
            Peer.same(consumer.beginningOffsets(List.of(place)).get(place), 20L);
        }
    }
}
