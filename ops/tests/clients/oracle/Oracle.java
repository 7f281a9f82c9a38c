import java.io.BufferedReader;
import java.io.BufferedWriter;
import java.io.InputStreamReader;
import java.io.OutputStreamWriter;
import java.net.InetAddress;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.internals.PluginMetricsImpl;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.common.utils.SecurityUtils;
import org.apache.kafka.metadata.authorizer.StandardAcl;
import org.apache.kafka.metadata.authorizer.StandardAuthorizer;
import org.apache.kafka.server.authorizer.Action;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;

/**
 * Says what Kafka's own authorizer decides. Reads lines whose fields are separated by tabs:
 *
 * RULE type pattern name principal host operation permission: a rule of the next set
 * LOAD open: these rules and no others hold from now on; open is allow.everyone.if.no.acl.found
 * ASK type name principal host operation: prints ALLOWED or DENIED
 * ANY type principal host operation: the same question about any resource of the type
 * FLUSH: what was printed is sent
 */
public final class Oracle {
    private record Context(KafkaPrincipal principal, InetAddress clientAddress) implements AuthorizableRequestContext {
        public String listenerName() {
            return "CLIENTS";
        }

        public SecurityProtocol securityProtocol() {
            return SecurityProtocol.SASL_SSL;
        }

        public int requestType() {
            return 3;
        }

        public int requestVersion() {
            return 12;
        }

        public String clientId() {
            return "oracle";
        }

        public int correlationId() {
            return 1;
        }
    }

    private static Context context(String principal, String host) throws Exception {
        return new Context(SecurityUtils.parseKafkaPrincipal(principal), InetAddress.getByName(host));
    }

    private static StandardAuthorizer authorizer(String open) {
        StandardAuthorizer authorizer = new StandardAuthorizer();
        authorizer.configure(Map.of("allow.everyone.if.no.acl.found", open));
        authorizer.withPluginMetrics(new PluginMetricsImpl(new Metrics(), Map.of()));
        authorizer.completeInitialLoad();
        return authorizer;
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, StandardAuthorizer> authorizers = Map.of("true", authorizer("true"), "false", authorizer("false"));
        StandardAuthorizer authorizer = authorizers.get("false");
        var in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        var out = new BufferedWriter(new OutputStreamWriter(System.out, StandardCharsets.UTF_8));
        Map<Uuid, StandardAcl> rules = new HashMap<>();
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            String[] fields = line.split("\t", -1);
            switch (fields[0]) {
                case "RULE" -> rules.put(Uuid.randomUuid(), new StandardAcl(
                    ResourceType.valueOf(fields[1]), fields[3], PatternType.valueOf(fields[2]), fields[4], fields[5],
                    AclOperation.valueOf(fields[6]), AclPermissionType.valueOf(fields[7])));
                case "LOAD" -> {
                    authorizer = authorizers.get(fields[1]);
                    authorizer.loadSnapshot(rules);
                    rules = new HashMap<>();
                }
                case "ASK" -> {
                    var pattern = new ResourcePattern(
                        ResourceType.valueOf(fields[1]), fields[2], PatternType.LITERAL);
                    var action = new Action(AclOperation.valueOf(fields[5]), pattern, 1, true, true);
                    out.write(authorizer.authorize(context(fields[3], fields[4]), List.of(action)).get(0) + "\n");
                }
                case "ANY" -> out.write(authorizer.authorizeByResourceType(
                    context(fields[2], fields[3]), AclOperation.valueOf(fields[4]),
                    ResourceType.valueOf(fields[1])) + "\n");
                case "FLUSH" -> out.flush();
                default -> throw new IllegalArgumentException(line);
            }
        }
        for (StandardAuthorizer each : authorizers.values()) {
            each.close();
        }
    }
}
