import java.util.*;
import java.util.concurrent.ExecutionException;
import org.apache.kafka.clients.admin.*;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.errors.*;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.token.delegation.DelegationToken;
import org.apache.kafka.tools.DelegationTokenCommand;

/** Delegation tokens: by Kafka's administrator and its tool. Access rules are enforced. */
public final class Tokens {
    static final long HOUR_MS = 3_600_000;

    static KafkaPrincipal user(String name) {
        return new KafkaPrincipal(KafkaPrincipal.USER_TYPE, name);
    }

    /** Who has a token logs in by its id and its HMAC. */
    static Map<String, Object> connection(String id, String hmac) {
        Map<String, Object> connection = Secured.connection(id, hmac);
        String login = (String) connection.get("sasl.jaas.config");
        connection.put("sasl.jaas.config", login.replace(";", " tokenauth=\"true\";"));
        return connection;
    }

    static void refused(Class<? extends Exception> by, Lab.Check work) throws Exception {
        try {
            work.run();
        } catch (ExecutionException error) {
            Lab.expect(by.isInstance(error.getCause()), "" + error.getCause());
            return;
        }
        throw new IllegalStateException("it was done; expected " + by.getSimpleName());
    }

    static String administrator() throws Exception {
        String owner = Secured.allowed(Lab.PREFIX + "olga", Secured.producerRules());
        String renewer = Secured.user(Lab.PREFIX + "rene", Secured.PASSWORD);
        try (Admin olga = Admin.create(Secured.connection(owner, Secured.PASSWORD));
                Admin rene = Admin.create(Secured.connection(renewer, Secured.PASSWORD))) {
            var options = new CreateDelegationTokenOptions().renewers(List.of(user(renewer))).maxLifetimeMs(2 * HOUR_MS);
            DelegationToken token = olga.createDelegationToken(options).delegationToken().get();
            String id = token.tokenInfo().tokenId();
            Lab.expect(token.tokenInfo().owner().equals(user(owner)), "owner " + token.tokenInfo().owner());
            Lab.expect(token.hmac().length == 64, token.hmac().length + " bytes");

            Map<String, Object> byToken = connection(id, token.hmacAsBase64String());
            Secured.produce(byToken);
            try (Admin delegate = Admin.create(byToken)) {
                Lab.expect(delegate.listTopics().names().get().contains(Secured.TOPIC), "the owner's topic is not seen");
                refused(ClusterAuthorizationException.class, () -> "" + delegate.describeAcls(org.apache.kafka.common.acl.AclBindingFilter.ANY).values().get());
                for (Lab.Check work : List.<Lab.Check>of(() -> "" + delegate.createDelegationToken().delegationToken().get(),
                        () -> "" + delegate.renewDelegationToken(token.hmac()).expiryTimestamp().get(),
                        () -> "" + delegate.expireDelegationToken(token.hmac()).expiryTimestamp().get(),
                        () -> "" + delegate.describeDelegationToken().delegationTokens().get())) {
                    refused(UnsupportedByAuthenticationException.class, work);
                }
                List<DelegationToken> seen = rene.describeDelegationToken().delegationTokens().get();
                Lab.expect(seen.size() == 1 && seen.get(0).tokenInfo().equals(token.tokenInfo()), "" + seen);
                Lab.expect(!Arrays.equals(seen.get(0).hmac(), token.hmac()), "a description shows the secret");
                long later = rene.renewDelegationToken(seen.get(0).hmac(), new RenewDelegationTokenOptions().renewTimePeriodMs(HOUR_MS)).expiryTimestamp().get();
                Lab.expect(later <= token.tokenInfo().maxTimestamp() && later > System.currentTimeMillis(), "renewed until " + later);
                refused(DelegationTokenNotFoundException.class, () -> "" + olga.renewDelegationToken(new byte[64]).expiryTimestamp().get());
                refused(DelegationTokenAuthorizationException.class, () -> "" + rene.createDelegationToken(new CreateDelegationTokenOptions().owner(user(owner))).delegationToken().get());
                Secured.admin.createAcls(List.of(Secured.literal(ResourceType.USER, "User:" + owner, AclOperation.CREATE_TOKENS).of(renewer))).all().get();
                DelegationToken ofOwner = rene.createDelegationToken(new CreateDelegationTokenOptions().owner(user(owner))).delegationToken().get();
                Lab.expect(ofOwner.tokenInfo().owner().equals(user(owner)) && ofOwner.tokenInfo().tokenRequester().equals(user(renewer)), "" + ofOwner.tokenInfo());

                olga.expireDelegationToken(token.hmac()).expiryTimestamp().get();
                refused(SaslAuthenticationException.class, () -> {
                    for (int again = 0; again < 100; again++) {
                        delegate.listTopics().names().get();
                    }
                    return "served";
                });
            }
            Lab.expect(olga.describeDelegationToken(new DescribeDelegationTokenOptions().owners(List.of(user(owner)))).delegationTokens().get().size() == 1, "a token that was expired is described");
        }
        return "create, log in, describe, renew, expire; for another owner";
    }

    static String tool() throws Exception {
        String owner = Secured.user(Lab.PREFIX + "otto", Secured.PASSWORD);
        String[] asOwner = Secured.as(owner, Secured.PASSWORD);
        String told = run(Tools.and(asOwner, "--create", "--max-life-time-period", "-1", "--renewer-principal", "User:" + Lab.PREFIX + "reno"));
        String[] row = told.lines().filter(line -> line.contains("User:" + owner)).findFirst().orElseThrow().trim().split("\\s+");
        String id = row[0], hmac = row[1];
        try (Admin delegate = Admin.create(connection(id, hmac))) {
            delegate.describeCluster().nodes().get();
        }
        told = run(Tools.and(asOwner, "--describe", "--owner-principal", "User:" + owner));
        Tools.expect(told, id);
        Lab.expect(!told.contains(hmac), "a description shows the secret: " + told);
        String shown = Arrays.stream(told.split("\\s+")).dropWhile(word -> !word.equals(id)).skip(1).findFirst().orElseThrow();
        Tools.expect(run(Tools.and(asOwner, "--renew", "--renew-time-period", "-1", "--hmac", hmac)), "Completed renew operation");
        Tools.expect(run(Tools.and(asOwner, "--expire", "--expiry-time-period", "-1", "--hmac", shown)), "Completed expire operation");
        try (Admin delegate = Admin.create(connection(id, hmac))) {
            refused(SaslAuthenticationException.class, () -> "" + delegate.describeCluster().nodes().get());
        }
        return "create, describe, renew, expire";
    }

    static String run(String... arguments) throws Exception {
        return Secured.process("", DelegationTokenCommand.class.getName(), arguments);
    }
}
