import java.time.Duration;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.DescribeProducersOptions;
import org.apache.kafka.clients.admin.ProducerState;
import org.apache.kafka.clients.admin.AbortTransactionSpec;
import org.apache.kafka.clients.admin.TransactionDescription;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.InvalidProducerEpochException;
import org.apache.kafka.common.errors.ProducerFencedException;

/** Producers with a transactional id. */
class Transactions {
    private final Peer peer;

    Transactions(Peer peer) {
        this.peer = peer;
    }

    void tell() {
        peer.story("txn-commit-abort", this::commitAndAbort);
        peer.story("txn-many", this::many);
        peer.story("txn-stable-offset", this::stableOffset);
        peer.story("txn-offsets-classic", () -> offsets("classic"));
        peer.story("txn-offsets-consumer", () -> offsets("consumer"));
        peer.story("txn-fencing", this::fencing);
        peer.story("txn-fence-producers", this::fenceProducers);
        peer.story("txn-timeout", this::timeout);
        peer.story("txn-admin", this::admin);
        peer.story("txn-abort-by-admin", this::abortByAdmin);
    }

    private KafkaProducer<String, String> transactional(String id, Object... pairs) {
        KafkaProducer<String, String> producer = peer.producer(merged(pairs, "transactional.id", peer.prefix + id));
        producer.initTransactions();
        return producer;
    }

    private static Object[] merged(Object[] pairs, Object... more) {
        List<Object> all = new ArrayList<>(List.of(pairs));
        all.addAll(List.of(more));
        return all.toArray();
    }

    private void commitAndAbort() throws Exception {
        String topic = peer.topic("txn", 2);
        try (KafkaProducer<String, String> producer = transactional("t")) {
            for (int i = 0; i < 6; i++) {
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(topic, 0, null, "a" + i));
                producer.send(new ProducerRecord<>(topic, 1, null, "b" + i));
                producer.flush(); // an abort drops what is not sent
                if (i % 3 == 2) {
                    producer.abortTransaction();
                } else {
                    producer.commitTransaction();
                }
            }
        }
        Peer.sameElements(peer.values(topic, "read_committed"),
            List.of("a0", "b0", "a1", "b1", "a3", "b3", "a4", "b4"));
        Peer.same(peer.values(topic, "read_uncommitted").size(), 12);
    }

    private void many() throws Exception {
        String topic = peer.topic("txn-many", 3);
        try (KafkaProducer<String, String> producer = transactional("many", "batch.size", "400")) {
            for (int i = 0; i < 20; i++) {
                producer.beginTransaction();
                for (int j = 0; j < 100; j++) {
                    producer.send(new ProducerRecord<>(topic, j % 3, null, i + "." + j));
                }
                producer.commitTransaction();
            }
        }
        Peer.same(peer.values(topic, "read_committed").size(), 2000);
    }

    private void stableOffset() throws Exception {
        String topic = peer.topic("txn-open", 1);
        TopicPartition place = new TopicPartition(topic, 0);
        peer.send(topic, 0, 3);
        try (KafkaProducer<String, String> producer = transactional("open");
                KafkaConsumer<String, String> committed = peer.consumer("isolation.level", "read_committed");
                KafkaConsumer<String, String> all = peer.consumer()) {
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, 0, null, "open")).get();
            peer.send(topic, 0, 1);
            Peer.same(committed.endOffsets(List.of(place)).get(place), 3L);
            Peer.same(all.endOffsets(List.of(place)).get(place), 5L);
            producer.commitTransaction();
            committed.assign(List.of(place));
            Peer.same(peer.read(committed, 5).size(), 5);
        }
    }

    private void offsets(String protocol) throws Exception {
        String source = peer.topic("etl-in-" + protocol, 1);
        String target = peer.topic("etl-out-" + protocol, 1);
        String group = peer.prefix + "-etl-" + protocol;
        peer.send(source, 0, 10);
        TopicPartition place = new TopicPartition(source, 0);
        try (KafkaProducer<String, String> producer = transactional("etl-" + protocol);
                KafkaConsumer<String, String> consumer = peer.consumer(
                    "group.id", group, "group.protocol", protocol, "isolation.level", "read_committed")) {
            consumer.subscribe(List.of(source));
            List<ConsumerRecord<String, String>> found = peer.read(consumer, 10);
            Peer.same(found.size(), 10);
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(target, "aborted"));
            producer.sendOffsetsToTransaction(Map.of(place, new OffsetAndMetadata(5)), consumer.groupMetadata());
            producer.abortTransaction();
            Peer.check(consumer.committed(Set.of(place)).get(place) == null, "an aborted offset is committed");
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(target, "committed"));
            producer.sendOffsetsToTransaction(
                Map.of(place, new OffsetAndMetadata(8, "note")), consumer.groupMetadata());
            producer.commitTransaction();
            OffsetAndMetadata told = consumer.committed(Set.of(place)).get(place);
            Peer.same(told.offset() + told.metadata(), "8note");
        }
        Peer.same(peer.values(target, "read_committed"), List.of("committed"));
    }

    private void fencing() throws Exception {
        String topic = peer.topic("txn-fenced", 1);
        try (KafkaProducer<String, String> first = transactional("fenced")) {
            first.beginTransaction();
            first.send(new ProducerRecord<>(topic, "of the first")).get();
            try (KafkaProducer<String, String> second = transactional("fenced")) {
                Throwable error = Peer.fails(KafkaException.class, () -> {
                    first.send(new ProducerRecord<>(topic, "late")).get();
                    first.commitTransaction();
                    return "committed";
                });
                Throwable cause = error.getCause() == null ? error : error.getCause();
                Peer.check(error instanceof ProducerFencedException || error instanceof InvalidProducerEpochException
                    || cause instanceof ProducerFencedException || cause instanceof InvalidProducerEpochException,
                    "not fenced: " + error);
                second.beginTransaction();
                second.send(new ProducerRecord<>(topic, "of the second"));
                second.commitTransaction();
            }
        }
        Peer.same(peer.values(topic, "read_committed"), List.of("of the second"));
    }

    private void fenceProducers() throws Exception {
        String topic = peer.topic("txn-fence", 1);
        try (Admin admin = peer.admin(); KafkaProducer<String, String> producer = transactional("to-fence")) {
            admin.fenceProducers(List.of(peer.prefix + "to-fence")).all().get();
            Peer.fails(KafkaException.class, () -> {
                producer.beginTransaction();
                producer.send(new ProducerRecord<>(topic, "late")).get();
                producer.commitTransaction();
                return "committed";
            });
        }
        Peer.same(peer.values(topic, "read_committed"), List.of());
    }

    private void timeout() throws Exception {
        String topic = peer.topic("txn-timeout", 1);
        try (KafkaProducer<String, String> producer = transactional("slow", "transaction.timeout.ms", "1000")) {
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, "slow")).get();
            peer.send(topic, 0, 1);
            Peer.until("the transaction is aborted", () -> peer.values(topic, "read_committed").size() == 1);
            Peer.fails(KafkaException.class, () -> {
                producer.commitTransaction();
                return "committed";
            });
        }
    }

    private void admin() throws Exception {
        String topic = peer.topic("txn-admin", 1);
        TopicPartition place = new TopicPartition(topic, 0);
        String id = peer.prefix + "admin";
        try (Admin admin = peer.admin(); KafkaProducer<String, String> producer = transactional("admin")) {
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, 0, null, "x")).get();
            Peer.check(admin.listTransactions().all().get().stream()
                .anyMatch(each -> each.transactionalId().equals(id) && each.state().toString().equals("Ongoing")),
                "not listed as ongoing");
            TransactionDescription told = admin.describeTransactions(List.of(id)).all().get().get(id);
            Peer.same(told.state().toString() + told.topicPartitions(), "Ongoing" + Set.of(place));
            List<ProducerState> states =
                admin.describeProducers(List.of(place), new DescribeProducersOptions()).all().get().get(place)
                    .activeProducers();
            Peer.same(states.size(), 1);
            Peer.same(states.get(0).producerId(), told.producerId());
            Peer.same(states.get(0).currentTransactionStartOffset().getAsLong(), 0L);
            producer.commitTransaction();
            Peer.until("the transaction is complete", () -> admin.describeTransactions(List.of(id)).all().get()
                .get(id).state().toString().equals("CompleteCommit"));
        }
    }

    private void abortByAdmin() throws Exception {
        String topic = peer.topic("txn-hanging", 1);
        TopicPartition place = new TopicPartition(topic, 0);
        try (Admin admin = peer.admin(); KafkaProducer<String, String> producer = transactional("hanging")) {
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(topic, 0, null, "x")).get();
            ProducerState state =
                admin.describeProducers(List.of(place)).all().get().get(place).activeProducers().get(0);
            admin.abortTransaction(new AbortTransactionSpec(place, state.producerId(), (short) state.producerEpoch(),
                state.coordinatorEpoch().orElse(0))).all().get();
            try (KafkaConsumer<String, String> consumer = peer.consumer("isolation.level", "read_committed")) {
                Peer.same(consumer.endOffsets(List.of(place)).get(place), 2L);
            }
            producer.close(Duration.ofMillis(1));
        }
    }
}
