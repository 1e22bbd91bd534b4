import java.time.Duration;
import java.util.ArrayList;
import java.util.Collection;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.Callable;
import java.util.regex.Pattern;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ConsumerGroupDescription;
import org.apache.kafka.clients.admin.MemberToRemove;
import org.apache.kafka.clients.admin.RemoveMembersFromConsumerGroupOptions;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.FencedInstanceIdException;
import org.apache.kafka.common.errors.GroupIdNotFoundException;
import org.apache.kafka.common.errors.GroupNotEmptyException;

/** Members of groups, by both protocols, and their administration. */
class Groups {
    private final Peer peer;

    Groups(Peer peer) {
        this.peer = peer;
    }

    void tell() {
        for (String protocol : List.of("classic", "consumer")) {
            peer.story("group-" + protocol, () -> rebalances(protocol, "shared"));
            peer.story("group-static-" + protocol, () -> staticMembers(protocol));
            peer.story("group-pattern-" + protocol, () -> pattern(protocol));
            peer.story("group-commit-" + protocol, () -> commits(protocol));
            peer.story("group-admin-" + protocol, () -> administration(protocol));
        }
        peer.story("group-cooperative", () -> rebalances("classic", "cooperative",
            "partition.assignment.strategy", "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"));
        peer.story("group-sticky", () -> rebalances("classic", "sticky",
            "partition.assignment.strategy", "org.apache.kafka.clients.consumer.StickyAssignor"));
        peer.story("group-range-consumer", () -> rebalances("consumer", "range", "group.remote.assignor", "range"));
        peer.story("group-fenced-instance", this::fencedInstance);
        peer.story("group-offsets-by-admin", this::offsetsByAdmin);
        peer.story("group-remove-members", this::removeMembers);
        peer.story("group-upgrade", this::upgrade);
    }

    private KafkaConsumer<String, String> member(String group, String protocol, Object... pairs) {
        List<Object> all = new ArrayList<>(List.of(
            "group.id", group, "group.protocol", protocol, "metadata.max.age.ms", "1000", "fetch.max.wait.ms", "100"));
        if (protocol.equals("classic")) {
            all.addAll(List.of("heartbeat.interval.ms", "500"));
        }
        all.addAll(List.of(pairs));
        return peer.consumer(all.toArray());
    }

    /** Poll all of them in turn, until it holds; the values that came. */
    private List<String> poll(String what, List<KafkaConsumer<String, String>> members, Callable<Boolean> holds)
            throws Exception {
        List<String> found = new ArrayList<>();
        long end = System.currentTimeMillis() + Peer.PATIENCE_MS;
        while (!holds.call()) {
            Peer.check(System.currentTimeMillis() < end, "not in time: " + what + ", assigned: "
                + members.stream().map(KafkaConsumer::assignment).toList());
            for (KafkaConsumer<String, String> each : members) {
                each.poll(Duration.ofMillis(100)).forEach(record -> found.add(record.value()));
            }
        }
        return found;
    }

    private void rebalances(String protocol, String name, Object... pairs) throws Exception {
        String topic = peer.topic("group-" + protocol + "-" + name, 4);
        String group = topic;
        for (int i = 0; i < 4; i++) {
            peer.send(topic, i, 10);
        }
        List<String> found = new ArrayList<>();
        try (KafkaConsumer<String, String> first = member(group, protocol, pairs)) {
            first.subscribe(List.of(topic));
            found.addAll(poll("all records", List.of(first), () -> first.assignment().size() == 4));
            found.addAll(poll("more records", List.of(first), () -> position(first) == 40));
            first.commitSync();
            try (KafkaConsumer<String, String> second = member(group, protocol, pairs)) {
                second.subscribe(List.of(topic));
                found.addAll(poll("two partitions each", List.of(first, second),
                    () -> first.assignment().size() == 2 && second.assignment().size() == 2));
                Set<TopicPartition> both = new HashSet<>(first.assignment());
                both.addAll(second.assignment());
                Peer.same(both.size(), 4);
                for (int i = 0; i < 4; i++) {
                    peer.send(topic, i, 5);
                }
                found.addAll(poll("the records of both", List.of(first, second),
                    () -> position(first) + position(second) == 60));
                first.commitSync();
                second.commitSync();
            }
            found.addAll(poll("all partitions again", List.of(first), () -> first.assignment().size() == 4));
        }
        Peer.same(found.size(), 60);
    }

    private static long position(KafkaConsumer<String, String> consumer) {
        return consumer.assignment().stream().mapToLong(consumer::position).sum();
    }

    private void staticMembers(String protocol) throws Exception {
        String topic = peer.topic("static-" + protocol, 4);
        String group = topic;
        List<Collection<TopicPartition>> revoked = new ArrayList<>();
        ConsumerRebalanceListener listener = new ConsumerRebalanceListener() {
            @Override
            public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
                if (!partitions.isEmpty()) {
                    revoked.add(partitions);
                }
            }

            @Override
            public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            }
        };
        try (KafkaConsumer<String, String> first = member(group, protocol, "group.instance.id", "one")) {
            first.subscribe(List.of(topic), listener);
            Set<TopicPartition> before;
            try (KafkaConsumer<String, String> second = member(group, protocol, "group.instance.id", "two")) {
                second.subscribe(List.of(topic));
                poll("both", List.of(first, second),
                    () -> first.assignment().size() == 2 && second.assignment().size() == 2);
                before = Set.copyOf(second.assignment());
            }
            revoked.clear();
            try (KafkaConsumer<String, String> again = member(group, protocol, "group.instance.id", "two")) {
                again.subscribe(List.of(topic));
                poll("the same again", List.of(first, again), () -> again.assignment().equals(before));
            }
            Peer.same(revoked, List.of());
        }
    }

    private void fencedInstance() throws Exception {
        String topic = peer.topic("fenced-instance", 2);
        try (KafkaConsumer<String, String> first = member(topic, "classic", "group.instance.id", "one");
                KafkaConsumer<String, String> second = member(topic, "classic", "group.instance.id", "one")) {
            first.subscribe(List.of(topic));
            poll("the first", List.of(first), () -> first.assignment().size() == 2);
            second.subscribe(List.of(topic));
            poll("the second", List.of(second), () -> second.assignment().size() == 2);
            Peer.fails(FencedInstanceIdException.class, () -> {
                for (int i = 0; i < 100; i++) {
                    first.poll(Duration.ofMillis(200));
                }
                return "polled";
            });
        }
    }

    private void pattern(String protocol) throws Exception {
        String some = peer.topic("pattern-" + protocol + "-a", 1);
        try (KafkaConsumer<String, String> consumer = member(some, protocol)) {
            consumer.subscribe(Pattern.compile(peer.prefix + "-pattern-" + protocol + "-.*"));
            poll("the first topic", List.of(consumer), () -> consumer.assignment().size() == 1);
            peer.topic("pattern-" + protocol + "-b", 2);
            poll("the second topic", List.of(consumer), () -> consumer.assignment().size() == 3);
        }
    }

    private void commits(String protocol) throws Exception {
        String topic = peer.topic("commit-" + protocol, 2);
        peer.send(topic, 0, 10);
        TopicPartition first = new TopicPartition(topic, 0);
        TopicPartition second = new TopicPartition(topic, 1);
        try (KafkaConsumer<String, String> consumer = member(topic, protocol)) {
            consumer.subscribe(List.of(topic));
            poll("all", List.of(consumer), () -> consumer.assignment().size() == 2 && position(consumer) == 10);
            consumer.commitSync(Map.of(first, new OffsetAndMetadata(4, java.util.Optional.of(0), "a note")));
            Map<TopicPartition, OffsetAndMetadata> told = consumer.committed(Set.of(first, second));
            Peer.same(told.get(first).offset() + told.get(first).metadata(), "4a note");
            Peer.check(told.get(second) == null, "a position that nobody committed: " + told);
            List<Object> called = new ArrayList<>();
            consumer.commitAsync((offsets, error) -> called.add(error == null ? offsets : error));
            poll("the callback", List.of(consumer), () -> !called.isEmpty());
            Peer.same(consumer.committed(Set.of(first)).get(first).offset(), 10L);
        }
        try (KafkaConsumer<String, String> consumer = member(topic, protocol, "enable.auto.commit", "true")) {
            consumer.subscribe(List.of(topic));
            peer.send(topic, 0, 3);
            List<String> found = poll("the rest", List.of(consumer),
                () -> consumer.assignment().size() == 2 && position(consumer) == 13);
            Peer.same(found, List.of("0", "1", "2"));
        }
        try (KafkaConsumer<String, String> consumer = member(topic, protocol)) {
            Peer.same(consumer.committed(Set.of(first)).get(first).offset(), 13L);
        }
    }

    private void administration(String protocol) throws Exception {
        String topic = peer.topic("admin-" + protocol, 2);
        peer.send(topic, 0, 3);
        try (Admin admin = peer.admin()) {
            try (KafkaConsumer<String, String> consumer = member(topic, protocol, "client.id", "a-client")) {
                consumer.subscribe(List.of(topic));
                poll("all", List.of(consumer), () -> consumer.assignment().size() == 2 && position(consumer) == 3);
                consumer.commitSync();
                Peer.check(admin.listConsumerGroups().all().get().stream()
                    .anyMatch(each -> each.groupId().equals(topic)), "the group is not listed");
                ConsumerGroupDescription told =
                    admin.describeConsumerGroups(List.of(topic)).all().get().get(topic);
                Peer.same(told.state().toString(), "Stable");
                Peer.same(told.members().size(), 1);
                Peer.same(told.members().iterator().next().clientId(), "a-client");
                Peer.same(told.members().iterator().next().assignment().topicPartitions(), consumer.assignment());
                Peer.same(told.partitionAssignor(), protocol.equals("classic") ? "range" : "uniform");
                Peer.fails(GroupNotEmptyException.class, () -> admin.deleteConsumerGroups(List.of(topic)).all().get());
            }
            Peer.until("the group is empty", () -> admin.describeConsumerGroups(List.of(topic)).all().get()
                .get(topic).state().toString().equals("Empty"));
            Map<TopicPartition, OffsetAndMetadata> positions =
                admin.listConsumerGroupOffsets(topic).partitionsToOffsetAndMetadata().get();
            Peer.same(positions.get(new TopicPartition(topic, 0)).offset(), 3L);
            admin.deleteConsumerGroups(List.of(topic)).all().get();
            Peer.check(admin.listConsumerGroups().all().get().stream()
                .noneMatch(each -> each.groupId().equals(topic)), "the group is still listed");
            Peer.fails(GroupIdNotFoundException.class,
                () -> admin.deleteConsumerGroups(List.of(topic)).all().get());
        }
    }

    private void offsetsByAdmin() throws Exception {
        String topic = peer.topic("positions", 2);
        TopicPartition first = new TopicPartition(topic, 0);
        TopicPartition second = new TopicPartition(topic, 1);
        peer.send(topic, 0, 5);
        try (Admin admin = peer.admin()) {
            admin.alterConsumerGroupOffsets(topic,
                Map.of(first, new OffsetAndMetadata(2), second, new OffsetAndMetadata(0))).all().get();
            Peer.same(admin.listConsumerGroupOffsets(topic).partitionsToOffsetAndMetadata().get().size(), 2);
            admin.deleteConsumerGroupOffsets(topic, Set.of(second)).all().get();
            Peer.same(admin.listConsumerGroupOffsets(topic).partitionsToOffsetAndMetadata().get().keySet(),
                Set.of(first));
            try (KafkaConsumer<String, String> consumer = member(topic, "classic")) {
                consumer.subscribe(List.of(topic));
                List<String> found = poll("the rest", List.of(consumer),
                    () -> consumer.assignment().size() == 2 && position(consumer) == 5);
                Peer.same(found, List.of("2", "3", "4"));
                Peer.fails(KafkaException.class, () -> admin.alterConsumerGroupOffsets(topic,
                    Map.of(first, new OffsetAndMetadata(0))).all().get());
                Peer.fails(KafkaException.class,
                    () -> admin.deleteConsumerGroupOffsets(topic, Set.of(first)).all().get());
            }
            Set<String> asked = Set.of(topic, topic + "-2");
            Peer.same(admin.listConsumerGroupOffsets(asked.stream().collect(Collectors.toMap(each -> each,
                each -> new org.apache.kafka.clients.admin.ListConsumerGroupOffsetsSpec()))).all().get().keySet(),
                asked);
        }
    }

    private void removeMembers() throws Exception {
        String topic = peer.topic("removed", 2);
        try (Admin admin = peer.admin()) {
            try (KafkaConsumer<String, String> consumer = member(topic, "classic", "group.instance.id", "one")) {
                consumer.subscribe(List.of(topic));
                poll("all", List.of(consumer), () -> consumer.assignment().size() == 2);
            }
            admin.removeMembersFromConsumerGroup(topic,
                new RemoveMembersFromConsumerGroupOptions(Set.of(new MemberToRemove("one")))).all().get();
            Peer.same(admin.describeConsumerGroups(List.of(topic)).all().get().get(topic).members().size(), 0);
        }
    }

    private void upgrade() throws Exception {
        String topic = peer.topic("upgraded", 1);
        peer.send(topic, 0, 6);
        for (String protocol : List.of("classic", "consumer", "classic")) {
            try (KafkaConsumer<String, String> consumer = member(topic, protocol, "max.poll.records", "2")) {
                consumer.subscribe(List.of(topic));
                List<String> found = poll("two records", List.of(consumer),
                    () -> consumer.assignment().size() == 1 && position(consumer) % 2 == 0
                        && position(consumer) > committed(consumer, topic));
                Peer.check(!found.isEmpty(), "nothing was read");
                consumer.commitSync();
            }
        }
    }

    private static long committed(KafkaConsumer<String, String> consumer, String topic) {
        TopicPartition place = new TopicPartition(topic, 0);
        OffsetAndMetadata told = consumer.committed(Set.of(place)).get(place);
        return told == null ? 0 : told.offset();
    }
}
