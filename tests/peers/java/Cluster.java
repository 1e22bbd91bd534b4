import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.DescribeClusterOptions;
import org.apache.kafka.clients.admin.LogDirDescription;
import org.apache.kafka.clients.admin.NewPartitionReassignment;
import org.apache.kafka.common.ElectionType;
import org.apache.kafka.common.KafkaException;
import org.apache.kafka.common.Metric;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.ElectionNotNeededException;
import org.apache.kafka.common.errors.InvalidReplicaAssignmentException;
import org.apache.kafka.common.errors.NoReassignmentInProgressException;
import org.apache.kafka.common.errors.UnknownTopicOrPartitionException;

/** Nodes, leaders and folders, by the admin client. */
class Cluster {
    private final Peer peer;

    Cluster(Peer peer) {
        this.peer = peer;
    }

    void tell() {
        peer.story("cluster", this::cluster);
        peer.story("cluster-operations", this::operations);
        peer.story("features", this::features);
        peer.story("quorum", this::quorum);
        peer.story("log-dirs", this::logDirs);
        peer.story("elect-leaders", this::electLeaders);
        peer.story("reassignments-listed", this::reassignments);
        peer.story("reassign", this::reassign);
        peer.story("client-metrics", this::clientMetrics);
    }

    private void cluster() throws Exception {
        try (Admin admin = peer.admin()) {
            Peer.same(admin.describeCluster().nodes().get().size(), 1);
            Peer.check(!admin.describeCluster().clusterId().get().isEmpty(), "no id");
            Peer.check(admin.describeCluster().controller().get() != null, "no controller");
        }
    }

    private void operations() throws Exception {
        try (Admin admin = peer.admin()) {
            Peer.check(admin.describeCluster(new DescribeClusterOptions().includeAuthorizedOperations(true))
                .authorizedOperations().get() != null, "no operations");
        }
    }

    private void features() throws Exception {
        try (Admin admin = peer.admin()) {
            Map<String, ?> found = admin.describeFeatures().featureMetadata().get().finalizedFeatures();
            Peer.check(found.containsKey("metadata.version"), "" + found);
            Peer.check(found.containsKey("group.version"), "" + found);
        }
    }

    private void quorum() throws Exception {
        try (Admin admin = peer.admin()) {
            Peer.check(!admin.describeMetadataQuorum().quorumInfo().get().voters().isEmpty(), "no voter");
        }
    }

    private void logDirs() throws Exception {
        String topic = peer.topic("dirs", 1);
        peer.send(topic, 0, 100);
        try (Admin admin = peer.admin()) {
            int node = admin.describeCluster().nodes().get().iterator().next().id();
            Map<String, LogDirDescription> found = admin.describeLogDirs(List.of(node)).allDescriptions().get().get(node);
            Peer.check(found.values().stream().map(each -> each.replicaInfos().get(new TopicPartition(topic, 0)))
                .anyMatch(each -> each != null && each.size() > 100), "" + found);
        }
    }

    private void electLeaders() throws Exception {
        TopicPartition place = new TopicPartition(peer.topic("elected", 1), 0);
        TopicPartition missing = new TopicPartition(peer.prefix + "-missing", 0);
        try (Admin admin = peer.admin()) {
            Map<TopicPartition, Optional<Throwable>> told =
                admin.electLeaders(ElectionType.PREFERRED, Set.of(place, missing)).partitions().get();
            Peer.check(told.get(place).get() instanceof ElectionNotNeededException, "" + told);
            Peer.check(told.get(missing).get() instanceof UnknownTopicOrPartitionException, "" + told);
            Peer.check(admin.electLeaders(ElectionType.PREFERRED, null).partitions().get().values().stream()
                .allMatch(Optional::isEmpty), "an election of all failed");
        }
    }

    private void reassignments() throws Exception {
        TopicPartition place = new TopicPartition(peer.topic("reassigned", 1), 0);
        try (Admin admin = peer.admin()) {
            Peer.same(admin.listPartitionReassignments().reassignments().get(), Map.of());
            Peer.same(admin.listPartitionReassignments(Set.of(place)).reassignments().get(), Map.of());
        }
    }

    private void reassign() throws Exception {
        TopicPartition place = new TopicPartition(peer.topic("reassign", 1), 0);
        TopicPartition missing = new TopicPartition(peer.prefix + "-missing", 0);
        try (Admin admin = peer.admin()) {
            int node = admin.describeCluster().nodes().get().iterator().next().id();
            admin.alterPartitionReassignments(
                Map.of(place, Optional.of(new NewPartitionReassignment(List.of(node))))).all().get();
            Peer.fails(NoReassignmentInProgressException.class,
                () -> admin.alterPartitionReassignments(Map.of(place, Optional.empty())).all().get());
            Peer.fails(InvalidReplicaAssignmentException.class, () -> admin.alterPartitionReassignments(
                Map.of(place, Optional.of(new NewPartitionReassignment(List.of(4711))))).all().get());
            Peer.fails(UnknownTopicOrPartitionException.class, () -> admin.alterPartitionReassignments(
                Map.of(missing, Optional.of(new NewPartitionReassignment(List.of(node))))).all().get());
        }
    }

    private void clientMetrics() throws Exception {
        try (Admin admin = peer.admin()) {
            Map<?, ? extends Metric> found = admin.metrics();
            Peer.check(!found.isEmpty(), "no metrics");
            // that there are none is said by a list, not by an error
            Peer.same(admin.listClientMetricsResources().all().get().size(), 0);
        } catch (KafkaException error) {
            throw new AssertionError(error);
        }
    }
}
