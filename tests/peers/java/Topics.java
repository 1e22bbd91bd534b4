import java.util.Collection;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.stream.Collectors;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.AlterConfigOp.OpType;
import org.apache.kafka.clients.admin.Config;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.CreateTopicsOptions;
import org.apache.kafka.clients.admin.CreateTopicsResult;
import org.apache.kafka.clients.admin.DescribeConfigsOptions;
import org.apache.kafka.clients.admin.NewPartitions;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.clients.admin.TopicDescription;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicCollection;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.errors.InvalidConfigurationException;
import org.apache.kafka.common.errors.InvalidPartitionsException;
import org.apache.kafka.common.errors.InvalidTopicException;
import org.apache.kafka.common.errors.TopicExistsException;
import org.apache.kafka.common.errors.UnknownTopicIdException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;

/** Topics and their settings, by the admin client. */
class Topics {
    private final Peer peer;

    Topics(Peer peer) {
        this.peer = peer;
    }

    void tell() {
        peer.story("topics", this::topics);
        peer.story("topics-by-id", this::byId);
        peer.story("topics-created-with-defaults", this::defaults);
        peer.story("topics-validate-only", this::validateOnly);
        peer.story("topics-errors", this::errors);
        peer.story("topics-many", this::many);
        peer.story("partitions", this::partitions);
        peer.story("topic-configs", this::configs);
        peer.story("topic-configs-errors", this::configErrors);
        peer.story("broker-configs", this::brokerConfigs);
        peer.story("broker-loggers", this::loggers);
        peer.story("list-offsets", this::listOffsets);
    }

    private void topics() throws Exception {
        try (Admin admin = peer.admin()) {
            String topic = peer.topic(admin, "t", 3, Map.of("retention.ms", "1000"));
            TopicDescription told = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic);
            Peer.same(told.partitions().size(), 3);
            Peer.same(told.partitions().get(0).isr().size(), 1);
            Peer.check(!told.isInternal(), "internal");
            Peer.check(admin.listTopics().names().get().contains(topic), "not listed");
            admin.deleteTopics(List.of(topic)).all().get();
            Peer.until("it is gone", () -> !admin.listTopics().names().get().contains(topic));
            Peer.fails(UnknownTopicOrPartitionException.class,
                () -> admin.describeTopics(List.of(topic)).allTopicNames().get());
        }
    }

    private void byId() throws Exception {
        try (Admin admin = peer.admin()) {
            String topic = peer.topic(admin, "by-id", 1, Map.of());
            Uuid id = admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic).topicId();
            Peer.same(admin.describeTopics(TopicCollection.ofTopicIds(List.of(id))).allTopicIds().get().get(id).name(),
                topic);
            admin.deleteTopics(TopicCollection.ofTopicIds(List.of(id))).all().get();
            Peer.until("it is gone", () -> !admin.listTopics().names().get().contains(topic));
            Peer.fails(UnknownTopicIdException.class,
                () -> admin.describeTopics(TopicCollection.ofTopicIds(List.of(Uuid.randomUuid()))).allTopicIds().get());
            Peer.fails(UnknownTopicIdException.class,
                () -> admin.deleteTopics(TopicCollection.ofTopicIds(List.of(Uuid.randomUuid()))).all().get());
        }
    }

    private void defaults() throws Exception {
        String topic = peer.prefix + "-with-defaults";
        try (Admin admin = peer.admin()) {
            CreateTopicsResult told = admin.createTopics(List.of(
                new NewTopic(topic, java.util.Optional.empty(), java.util.Optional.empty())
                    .configs(Map.of("retention.bytes", "1000000"))));
            told.all().get();
            Peer.same(told.numPartitions(topic).get(), 1);
            Peer.same(told.replicationFactor(topic).get(), 1);
            Peer.same(told.config(topic).get().get("retention.bytes").value(), "1000000");
            Peer.same(told.config(topic).get().get("cleanup.policy").value(), "delete");
            Peer.check(!told.topicId(topic).get().equals(Uuid.ZERO_UUID), "no id");
            String assigned = peer.prefix + "-assigned";
            int node = admin.describeCluster().nodes().get().iterator().next().id();
            admin.createTopics(List.of(new NewTopic(assigned, Map.of(0, List.of(node), 1, List.of(node))))).all().get();
            Peer.until("it is seen", () -> admin.listTopics().names().get().contains(assigned));
            Peer.same(admin.describeTopics(List.of(assigned)).allTopicNames().get().get(assigned).partitions().size(),
                2);
        }
    }

    private void validateOnly() throws Exception {
        String topic = peer.prefix + "-validated";
        try (Admin admin = peer.admin()) {
            admin.createTopics(List.of(new NewTopic(topic, 1, (short) 1)),
                new CreateTopicsOptions().validateOnly(true)).all().get();
            Peer.check(!admin.listTopics().names().get().contains(topic), "it was made");
        }
    }

    private void errors() throws Exception {
        try (Admin admin = peer.admin()) {
            String topic = peer.topic(admin, "errors", 1, Map.of());
            Peer.fails(TopicExistsException.class,
                () -> admin.createTopics(List.of(new NewTopic(topic, 1, (short) 1))).all().get());
            Peer.fails(InvalidTopicException.class,
                () -> admin.createTopics(List.of(new NewTopic("no/slash", 1, (short) 1))).all().get());
            Peer.fails(InvalidPartitionsException.class,
                () -> admin.createTopics(List.of(new NewTopic(topic + "2", 0, (short) 1))).all().get());
            Peer.fails(InvalidConfigurationException.class, () -> admin.createTopics(List.of(
                new NewTopic(topic + "3", 1, (short) 1).configs(Map.of("retention.ms", "long")))).all().get());
            Peer.fails(InvalidConfigurationException.class, () -> admin.createTopics(List.of(
                new NewTopic(topic + "3", 1, (short) 1).configs(Map.of("no.such.setting", "1")))).all().get());
            Peer.fails(UnknownTopicOrPartitionException.class,
                () -> admin.deleteTopics(List.of(topic + "4")).all().get());
        }
    }

    private void many() throws Exception {
        List<NewTopic> all = java.util.stream.IntStream.range(0, 30)
            .mapToObj(each -> new NewTopic(peer.prefix + "-many-" + each, 2, (short) 1)).toList();
        List<String> names = all.stream().map(NewTopic::name).toList();
        try (Admin admin = peer.admin()) {
            admin.createTopics(all).all().get();
            Peer.until("all are listed", () -> admin.listTopics().names().get().containsAll(names));
            Peer.same(admin.describeTopics(names).allTopicNames().get().size(), 30);
            admin.deleteTopics(names).all().get();
            Peer.until("all are gone", () -> admin.listTopics().names().get().stream().noneMatch(names::contains));
        }
    }

    private void partitions() throws Exception {
        try (Admin admin = peer.admin()) {
            String topic = peer.topic(admin, "more", 2, Map.of());
            admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(4))).all().get();
            Peer.until("there are more", () -> admin.describeTopics(List.of(topic)).allTopicNames().get().get(topic)
                .partitions().size() == 4);
            Peer.fails(InvalidPartitionsException.class,
                () -> admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(3))).all().get());
            Peer.fails(InvalidPartitionsException.class,
                () -> admin.createPartitions(Map.of(topic, NewPartitions.increaseTo(4))).all().get());
            Peer.fails(UnknownTopicOrPartitionException.class,
                () -> admin.createPartitions(Map.of(topic + "2", NewPartitions.increaseTo(4))).all().get());
        }
    }

    private Config described(Admin admin, ConfigResource resource) throws Exception {
        return admin.describeConfigs(List.of(resource)).all().get().get(resource);
    }

    private void alter(Admin admin, ConfigResource resource, OpType kind, String name, String value)
            throws Exception {
        Collection<AlterConfigOp> all = List.of(new AlterConfigOp(new ConfigEntry(name, value), kind));
        admin.incrementalAlterConfigs(Map.of(resource, all)).all().get();
    }

    private void configs() throws Exception {
        try (Admin admin = peer.admin()) {
            String topic = peer.topic(admin, "configs", 1, Map.of("retention.ms", "86400000"));
            ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
            ConfigEntry entry = described(admin, resource).get("retention.ms");
            Peer.same(entry.value() + entry.source(), "86400000DYNAMIC_TOPIC_CONFIG");
            Peer.check(!entry.isDefault() && !entry.isReadOnly() && !entry.isSensitive(), "" + entry);
            Peer.check(described(admin, resource).get("segment.bytes").isDefault(), "not the default");
            alter(admin, resource, OpType.SET, "retention.ms", "1000");
            Peer.until("it is set", () -> described(admin, resource).get("retention.ms").value().equals("1000"));
            alter(admin, resource, OpType.APPEND, "cleanup.policy", "compact");
            Peer.until("it is added", () -> Set.of(described(admin, resource).get("cleanup.policy").value().split(","))
                .equals(Set.of("delete", "compact")));
            alter(admin, resource, OpType.SUBTRACT, "cleanup.policy", "delete");
            Peer.until("it is taken out",
                () -> described(admin, resource).get("cleanup.policy").value().equals("compact"));
            alter(admin, resource, OpType.DELETE, "retention.ms", "");
            Peer.until("it is the default", () -> described(admin, resource).get("retention.ms").isDefault());
            Config full = admin.describeConfigs(List.of(resource),
                new DescribeConfigsOptions().includeSynonyms(true).includeDocumentation(true)).all().get()
                .get(resource);
            Peer.check(!full.get("cleanup.policy").synonyms().isEmpty(), "no synonyms");
            Peer.same(full.get("cleanup.policy").type(), ConfigEntry.ConfigType.LIST);
            Peer.same(full.get("retention.ms").type(), ConfigEntry.ConfigType.LONG);
        }
    }

    private void configErrors() throws Exception {
        try (Admin admin = peer.admin()) {
            String topic = peer.topic(admin, "config-errors", 1, Map.of());
            ConfigResource resource = new ConfigResource(ConfigResource.Type.TOPIC, topic);
            Peer.fails(InvalidConfigurationException.class, () -> {
                alter(admin, resource, OpType.SET, "retention.ms", "long");
                return "set";
            });
            Peer.fails(InvalidConfigurationException.class, () -> {
                alter(admin, resource, OpType.SET, "no.such.setting", "1");
                return "set";
            });
            ConfigResource missing = new ConfigResource(ConfigResource.Type.TOPIC, topic + "2");
            Peer.fails(UnknownTopicOrPartitionException.class, () -> described(admin, missing));
            Peer.fails(UnknownTopicOrPartitionException.class, () -> {
                alter(admin, missing, OpType.SET, "retention.ms", "1000");
                return "set";
            });
        }
    }

    private void brokerConfigs() throws Exception {
        try (Admin admin = peer.admin()) {
            int node = admin.describeCluster().nodes().get().iterator().next().id();
            Config told = described(admin, new ConfigResource(ConfigResource.Type.BROKER, "" + node));
            Peer.check(told.get("advertised.listeners") != null, "no advertised.listeners");
            Peer.check(told.get("log.retention.ms") != null || told.get("log.retention.hours") != null,
                "no retention");
            Peer.same(told.get("node.id").value(), "" + node);
            described(admin, new ConfigResource(ConfigResource.Type.BROKER, ""));
        }
    }

    private void loggers() throws Exception {
        try (Admin admin = peer.admin()) {
            int node = admin.describeCluster().nodes().get().iterator().next().id();
            described(admin, new ConfigResource(ConfigResource.Type.BROKER_LOGGER, "" + node));
        }
    }

    private void listOffsets() throws Exception {
        String topic = peer.topic("listed", 1);
        TopicPartition place = new TopicPartition(topic, 0);
        try (Admin admin = peer.admin(); KafkaProducer<String, String> producer = peer.producer()) {
            Peer.same(admin.listOffsets(Map.of(place, OffsetSpec.maxTimestamp())).partitionResult(place).get().offset(),
                -1L);
            for (int i : List.of(3, 1, 9, 2)) {
                producer.send(new ProducerRecord<>(topic, 0, 1_700_000_000_000L + i, null, "" + i)).get();
            }
            Map<String, OffsetSpec> asked = Map.of("earliest", OffsetSpec.earliest(), "latest", OffsetSpec.latest(),
                "max", OffsetSpec.maxTimestamp(), "time", OffsetSpec.forTimestamp(1_700_000_000_002L),
                "late", OffsetSpec.forTimestamp(1_800_000_000_000L), "local", OffsetSpec.earliestLocal(),
                "tiered", OffsetSpec.latestTiered());
            Map<String, Long> found = asked.entrySet().stream().collect(Collectors.toMap(Map.Entry::getKey, each -> {
                try {
                    return admin.listOffsets(Map.of(place, each.getValue())).partitionResult(place).get().offset();
                } catch (Exception error) {
                    throw new AssertionError(each.getKey() + ": " + error);
                }
            }));
            Peer.same(found, Map.of("earliest", 0L, "latest", 4L, "max", 2L, "time", 0L, "late", -1L, "local", 0L,
                "tiered", -1L));
        }
    }
}
