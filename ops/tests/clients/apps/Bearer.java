import java.math.BigInteger;
import java.nio.file.*;
import java.security.*;
import java.security.interfaces.ECPublicKey;
import java.security.spec.ECGenParameterSpec;
import java.util.*;
import org.apache.kafka.clients.producer.ProducerRecord;

/** A user by OAUTHBEARER, whose token is in a file that something else writes anew. */
public final class Bearer {
    static final Path KEYS = Path.of(System.getenv("JWKS"));
    static final long TOKEN_SECONDS = 10;
    static final long PRODUCE_SECONDS = 25;
    private static final Base64.Encoder BASE64 = Base64.getUrlEncoder().withoutPadding();

    static String produces() throws Exception {
        KeyPairGenerator generator = KeyPairGenerator.getInstance("EC");
        generator.initialize(new ECGenParameterSpec("secp256r1"));
        KeyPair key = generator.generateKeyPair();
        var point = ((ECPublicKey) key.getPublic()).getW();
        replace(KEYS, String.format("{\"keys\":[{\"kty\":\"EC\",\"crv\":\"P-256\",\"x\":\"%s\",\"y\":\"%s\"}]}",
                number(point.getAffineX()), number(point.getAffineY())));
        String user = Lab.PREFIX + "bearer";
        Secured.admin.createAcls(Secured.producerRules().stream().map(rule -> rule.of(user)).toList()).all().get();
        Path file = Lab.FOLDER.resolve("token.jwt");
        replace(file, token(key.getPrivate(), user));
        System.setProperty("org.apache.kafka.sasl.oauthbearer.allowed.urls", "file://" + file);
        System.setProperty("org.apache.kafka.sasl.oauthbearer.allowed.files", "" + file);
        Map<String, Object> connection = Secured.connection();
        connection.putAll(Map.of("sasl.mechanism", "OAUTHBEARER", "sasl.oauthbearer.token.endpoint.url", "file://" + file,
                "sasl.login.callback.handler.class", "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler",
                "sasl.jaas.config", "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;",
                "sasl.login.refresh.min.period.seconds", "0", "sasl.login.refresh.buffer.seconds", "0"));
        Lab.until("the node takes the key", () -> logsIn(connection));
        long until = System.nanoTime() + PRODUCE_SECONDS * 1_000_000_000;
        int count = 0;
        try (var producer = Secured.producer(connection, Map.of("retries", 0, "enable.idempotence", false))) {
            while (System.nanoTime() < until) {
                replace(file, token(key.getPrivate(), user));
                producer.send(new ProducerRecord<>(Secured.TOPIC, "by a token")).get();
                count++;
                Thread.sleep(50);
            }
            Object failed = producer.metrics().entrySet().stream().filter(it -> it.getKey().name().equals("failed-reauthentication-total")).findFirst().orElseThrow().getValue().metricValue();
            Object again = producer.metrics().entrySet().stream().filter(it -> it.getKey().name().equals("successful-reauthentication-total")).findFirst().orElseThrow().getValue().metricValue();
            Lab.expect((Double) again >= 1 && (Double) failed == 0, again + " logins again, " + failed + " failed");
            return count + " records, tokens of " + TOKEN_SECONDS + " s, " + again + " logins again";
        }
    }

    static boolean logsIn(Map<String, Object> connection) throws Exception {
        try (var client = org.apache.kafka.clients.admin.Admin.create(connection)) {
            client.describeCluster().nodes().get();
            return true;
        } catch (java.util.concurrent.ExecutionException error) {
            Lab.expect(error.getCause() instanceof org.apache.kafka.common.errors.SaslAuthenticationException, "" + error.getCause());
            return false;
        }
    }

    static String token(PrivateKey key, String user) throws Exception {
        long now = System.currentTimeMillis() / 1000;
        String claims = String.format("{\"iss\":\"lab\",\"aud\":\"kafka\",\"sub\":\"%s\",\"iat\":%d,\"exp\":%d}", user, now, now + TOKEN_SECONDS);
        String message = text("{\"alg\":\"ES256\"}") + "." + text(claims);
        Signature signature = Signature.getInstance("SHA256withECDSAinP1363Format");
        signature.initSign(key);
        signature.update(message.getBytes());
        return message + "." + BASE64.encodeToString(signature.sign());
    }

    static String text(String json) {
        return BASE64.encodeToString(json.getBytes());
    }

    /** In 32 bytes. */
    static String number(BigInteger value) {
        byte[] bytes = value.toByteArray(), all = new byte[32];
        int count = Math.min(bytes.length, all.length);
        System.arraycopy(bytes, bytes.length - count, all, all.length - count, count);
        return BASE64.encodeToString(all);
    }

    /** Nobody reads half of it. */
    static void replace(Path file, String text) throws Exception {
        Path next = file.resolveSibling(file.getFileName() + ".next");
        Files.writeString(next, text);
        Files.move(next, file, StandardCopyOption.ATOMIC_MOVE, StandardCopyOption.REPLACE_EXISTING);
    }
}
