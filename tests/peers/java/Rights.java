import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.ScramCredentialInfo;
import org.apache.kafka.clients.admin.ScramMechanism;
import org.apache.kafka.clients.admin.UserScramCredentialDeletion;
import org.apache.kafka.clients.admin.UserScramCredentialUpsertion;
import org.apache.kafka.common.acl.AccessControlEntry;
import org.apache.kafka.common.acl.AccessControlEntryFilter;
import org.apache.kafka.common.acl.AclBinding;
import org.apache.kafka.common.acl.AclBindingFilter;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.errors.ResourceNotFoundException;
import org.apache.kafka.common.quota.ClientQuotaAlteration;
import org.apache.kafka.common.quota.ClientQuotaEntity;
import org.apache.kafka.common.quota.ClientQuotaFilter;
import org.apache.kafka.common.quota.ClientQuotaFilterComponent;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourcePatternFilter;
import org.apache.kafka.common.resource.ResourceType;

/** ACLs, quotas and users, at a server with ACLs where this client may do everything. */
class Rights {
    private final Peer peer;

    Rights(Peer peer) {
        this.peer = peer;
    }

    void tell() {
        peer.story("acls", this::acls);
        peer.story("quotas", this::quotas);
        peer.story("scram-users", this::users);
    }

    private Admin admin() {
        return peer.admin("bootstrap.servers", peer.secured);
    }

    private static AclBinding binding(ResourceType type, String name, PatternType pattern, AclOperation operation,
            AclPermissionType permission) {
        return new AclBinding(new ResourcePattern(type, name, pattern),
            new AccessControlEntry("User:alice", "*", operation, permission));
    }

    private void acls() throws Exception {
        AclBinding read = binding(ResourceType.TOPIC, peer.prefix + "-acl", PatternType.LITERAL, AclOperation.READ,
            AclPermissionType.ALLOW);
        AclBinding write = binding(ResourceType.TOPIC, peer.prefix + "-", PatternType.PREFIXED, AclOperation.WRITE,
            AclPermissionType.DENY);
        AclBinding group = binding(ResourceType.GROUP, peer.prefix + "-acl", PatternType.LITERAL, AclOperation.READ,
            AclPermissionType.ALLOW);
        AclBindingFilter matching = new AclBindingFilter(
            new ResourcePatternFilter(ResourceType.TOPIC, peer.prefix + "-acl", PatternType.MATCH),
            AccessControlEntryFilter.ANY);
        try (Admin admin = admin()) {
            admin.createAcls(List.of(read, write, group)).all().get();
            Peer.until("they are seen",
                () -> Set.copyOf(admin.describeAcls(matching).values().get()).equals(Set.of(read, write)));
            Peer.same(Set.copyOf(admin.deleteAcls(List.of(matching)).all().get()), Set.of(read, write));
            Peer.until("they are gone", () -> admin.describeAcls(matching).values().get().isEmpty());
            Peer.same(List.copyOf(admin.deleteAcls(List.of(group.toFilter())).all().get()), List.of(group));
        }
    }

    private void quotas() throws Exception {
        ClientQuotaEntity user = new ClientQuotaEntity(Map.of(ClientQuotaEntity.USER, peer.prefix));
        ClientQuotaFilter filter = ClientQuotaFilter.contains(
            List.of(ClientQuotaFilterComponent.ofEntity(ClientQuotaEntity.USER, peer.prefix)));
        try (Admin admin = admin()) {
            admin.alterClientQuotas(List.of(new ClientQuotaAlteration(user, List.of(
                new ClientQuotaAlteration.Op("producer_byte_rate", 1000.0),
                new ClientQuotaAlteration.Op("request_percentage", 50.0))))).all().get();
            Peer.until("they are seen", () -> Map.of(user, Map.of("producer_byte_rate", 1000.0, "request_percentage",
                50.0)).equals(admin.describeClientQuotas(filter).entities().get()));
            admin.alterClientQuotas(List.of(new ClientQuotaAlteration(user, List.of(
                new ClientQuotaAlteration.Op("producer_byte_rate", null),
                new ClientQuotaAlteration.Op("request_percentage", null))))).all().get();
            Peer.until("they are gone", () -> admin.describeClientQuotas(filter).entities().get().isEmpty());
        }
    }

    private void users() throws Exception {
        String user = peer.prefix + "-user";
        ScramCredentialInfo info = new ScramCredentialInfo(ScramMechanism.SCRAM_SHA_256, 4096);
        try (Admin admin = admin()) {
            admin.alterUserScramCredentials(List.of(new UserScramCredentialUpsertion(user, info, "a-password"))).all()
                .get();
            Peer.until("it is seen", () -> {
                try {
                    return List.of(info).equals(admin.describeUserScramCredentials(List.of(user)).description(user)
                        .get().credentialInfos());
                } catch (ExecutionException error) {
                    return false;
                }
            });
            Peer.check(admin.describeUserScramCredentials().users().get().contains(user), "not listed");
            admin.alterUserScramCredentials(
                List.of(new UserScramCredentialDeletion(user, ScramMechanism.SCRAM_SHA_256))).all().get();
            Peer.until("it is gone", () -> !admin.describeUserScramCredentials().users().get().contains(user));
            Peer.fails(ResourceNotFoundException.class,
                () -> admin.describeUserScramCredentials(List.of(user)).description(user).get());
        }
    }
}
