//! Tokens of keys that are made here, and two that `openssl` has signed with a key of RSA.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD as BASE64;
use ring::rand::SystemRandom;
use ring::signature::{
    ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _,
};
use serde_json::json;

use super::*;

const RSA_MODULUS: &str = "r6lFQq8qzmJCPttAolGBcW4kV0CUskDSqoSODs9DOuEJBkKmJqS9-R-GPXt7z-CKX4u0S1BRibNQRhb7Odym\
    21QpYlNSQG0YTyqX6Sl0aDJ-EeDTg4V4eUGvD5rWsGquNDGnNOV4TIleEbwUE9ESnHxMrxxqV6qK2grdxMdh\
    pLWbnf0qxTVjs8yO1IuqGQFvSlW-NAj5Q7bGrI_J5gEylev3h-FnK38AWpMPWH8AQhvrMtjPuRLNSPGGm2hq\
    TYYMBxur6MzdmUgYK0b2cQc12xqiaGNRnERWRg3lm65uBvA4iwJxNKnQ7LVRlEu9NKWRcy2ChWiDW57qiE7Y\
    SdNn4Q";
const SIGNED_BY_RS256: &str = "eyJhbGciOiJSUzI1NiIsImtpZCI6InJzYSIsInR5cCI6IkpXVCJ9.eyJpc3MiOiJodHRwczovL2lzc3Vlci5\
    leGFtcGxlIiwiYXVkIjpbImthZmthIiwib3RoZXIiXSwic3ViIjoiYWwiLCJleHAiOjIwMDAwMDAwMDB9.oM\
    JHtNcu8zYlawyC1lP5Ps4YI6hcnbvKhYQ368N-YjGAaevbkR6JT9fFNTUP2aY6KiIXt-ZyJEH4hvLob8j2x1\
    p-6wMu4P28NbSeSVP1hVWuZLeLq2KQD_Vs_yXJ3gaLsVuKQPGhymt83-1CyNXXHD5InAz-25S1RhE5rl9e-D\
    72fFEQ3AK5o2g8le7bU7wQugvi7vKN4QyNsgHenrxeNEmcLWre1qyXs3YazCZp9lAlxgmp_E41s-IpX1mUTl\
    vZbugKQNNOxqfYdeO8hiSYz9i02ffgax2MDtJqga8L2QuVIk3sbPUyWp3CJCdVF7Oz9Xvnhqepp_pu-GS4LM\
    kjvQ";
const SIGNED_BY_PS256: &str = "eyJhbGciOiJQUzI1NiIsImtpZCI6InJzYSIsInR5cCI6IkpXVCJ9.eyJpc3MiOiJodHRwczovL2lzc3Vlci5\
    leGFtcGxlIiwiYXVkIjpbImthZmthIiwib3RoZXIiXSwic3ViIjoiYWwiLCJleHAiOjIwMDAwMDAwMDB9.p4\
    2UV7R43yQfEUAk6-C7wiFBy6kTB9pkNr8TYCzIgV2o2HYf2pwqd86TJzms0c-ZQLUVd93zChqd1ozLs_erSp\
    D7rclCEC5vGX0aC2l-Hr_mueNzpBSStfGeRYH-Nja4u5ewHyYWaKJC2X6KseUjEFHy_sfdHlZBldS0jMTtCi\
    YAhXsGa-1uwsjWaHqheB0W9C2NbEUVd0GWOhYZExMablg5i_9VIgGCc8AEtO83pCDQ2d8xToZurDYxLnYqNa\
    lxV3uvOhDTpySm-2foPgZHqvfiH-587Jig0ET0W9iVizth3hcZ7k57HEe_5ssVFYpXIXiAcfrOkiOBjzm0ZW\
    fVmQ";

const NOW: Duration = Duration::from_secs(1_900_000_000);

fn rules() -> TokenRules {
    TokenRules {
        issuer: "https://issuer.example".to_owned(),
        audiences: vec!["kafka".to_owned(), "spare".to_owned()],
        user_claim: "sub".to_owned(),
        clock_skew: Duration::from_secs(30),
    }
}

/// A key of P-256.
struct Issuer {
    key: EcdsaKeyPair,
    random: SystemRandom,
}

impl Issuer {
    fn new() -> Self {
        let (random, algorithm) = (SystemRandom::new(), &ECDSA_P256_SHA256_FIXED_SIGNING);
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(algorithm, &random).expect("entropy");
        let key = EcdsaKeyPair::from_pkcs8(algorithm, pkcs8.as_ref(), &random).expect("a key");
        Self { key, random }
    }

    fn jwk(&self, id: &str) -> Value {
        let point = self.key.public_key().as_ref();
        let (x, y) = (BASE64.encode(&point[1..33]), BASE64.encode(&point[33..]));
        json!({"kty": "EC", "crv": "P-256", "kid": id, "use": "sig", "x": x, "y": y})
    }

    fn sign(&self, header: &Value, claims: &Value) -> String {
        let [header, claims] = [header, claims].map(|part| BASE64.encode(part.to_string()));
        let message = format!("{header}.{claims}");
        let signature = self.key.sign(&self.random, message.as_bytes()).expect("signs");
        format!("{message}.{}", BASE64.encode(signature))
    }
}

fn keys(keys: &[Value]) -> TokenKeys {
    TokenKeys::parse(&json!({ "keys": keys }).to_string()).expect("keys")
}

fn header() -> Value {
    json!({"alg": "ES256", "kid": "one"})
}

fn claims() -> Value {
    json!({
        "iss": "https://issuer.example", "aud": "kafka", "sub": "al",
        "exp": NOW.as_secs() + 600, "nbf": NOW.as_secs() - 1,
    })
}

/// The claims with some of them changed; `null` takes one away.
fn with(changes: &Value) -> Value {
    let mut claims = claims();
    for (name, value) in changes.as_object().expect("an object") {
        match value {
            Value::Null => drop(claims.as_object_mut().expect("an object").remove(name)),
            value => claims[name] = value.clone(),
        }
    }
    claims
}

#[test]
fn a_token_of_the_issuer_names_its_user() {
    let issuer = Issuer::new();
    let known = keys(&[Issuer::new().jwk("zero"), issuer.jwk("one")]);
    for header in [header(), json!({"alg": "ES256"}), json!({"alg": "ES256", "typ": "at+jwt"})] {
        let token = issuer.sign(&header, &claims());
        let ends_at = NOW + Duration::from_secs(600);
        let expected = TokenHolder { user: "al".to_owned(), ends_at };
        assert_eq!(holder_of(&token, &known, &rules(), NOW), Ok(expected), "{header}");
    }
    let by_name = TokenRules { user_claim: "preferred_username".to_owned(), ..rules() };
    let token = issuer.sign(&header(), &with(&json!({"preferred_username": "bo"})));
    let holder = holder_of(&token, &known, &by_name, NOW).expect("a holder");
    assert_eq!(holder.user, "bo");
}

#[test]
fn keys_of_rsa_and_ed25519_sign_too() {
    let rsa = json!({"kty": "RSA", "kid": "rsa", "e": "AQAB", "n": RSA_MODULUS});
    let known = keys(std::slice::from_ref(&rsa));
    for token in [SIGNED_BY_RS256, SIGNED_BY_PS256] {
        let holder = holder_of(token, &known, &rules(), NOW).expect("a holder");
        assert_eq!(holder.user, "al");
    }
    let mut stated = rsa;
    stated["alg"] = json!("RS256");
    let refused = holder_of(SIGNED_BY_PS256, &keys(&[stated]), &rules(), NOW);
    assert_eq!(refused, Err(TokenError::Key), "the key is for RS256 alone");

    let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).expect("entropy");
    let key = Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).expect("a key");
    let x = BASE64.encode(key.public_key().as_ref());
    let known = keys(&[json!({"kty": "OKP", "crv": "Ed25519", "x": x})]);
    let parts = [json!({"alg": "EdDSA"}), claims()].map(|part| BASE64.encode(part.to_string()));
    let message = parts.join(".");
    let token = format!("{message}.{}", BASE64.encode(key.sign(message.as_bytes())));
    assert!(holder_of(&token, &known, &rules(), NOW).is_ok());
}

#[test]
fn a_token_with_other_claims_is_refused() {
    let issuer = Issuer::new();
    let known = keys(&[issuer.jwk("one")]);
    let now = NOW.as_secs();
    for (changes, error) in [
        (json!({"exp": now - 30}), TokenError::Expired),
        (json!({"exp": null}), TokenError::Expired),
        (json!({"exp": "later"}), TokenError::Expired),
        (json!({"exp": -1}), TokenError::Expired),
        (json!({"nbf": now + 31}), TokenError::Early),
        (json!({"nbf": "soon"}), TokenError::Malformed),
        (json!({"iss": "https://other.example"}), TokenError::Issuer),
        (json!({"iss": null}), TokenError::Issuer),
        (json!({"iss": 7}), TokenError::Issuer),
        (json!({"aud": "others"}), TokenError::Audience),
        (json!({"aud": ["others", "more"]}), TokenError::Audience),
        (json!({"aud": null}), TokenError::Audience),
        (json!({"aud": 7}), TokenError::Audience),
        (json!({"sub": null}), TokenError::User),
        (json!({"sub": ""}), TokenError::User),
        (json!({"sub": 7}), TokenError::User),
        (json!({"sub": "*"}), TokenError::User),
        (json!({"sub": "ANONYMOUS"}), TokenError::User),
        (json!({"sub": "a\nb"}), TokenError::User),
        (json!({"sub": "a".repeat(256)}), TokenError::User),
    ] {
        let token = issuer.sign(&header(), &with(&changes));
        assert_eq!(holder_of(&token, &known, &rules(), NOW), Err(error), "{changes}");
    }
    for changes in [
        json!({"exp": now - 29}),
        json!({"exp": now as f64 + 0.5}),
        json!({"nbf": now + 30}),
        json!({"nbf": null}),
        json!({"aud": ["others", "spare"]}),
    ] {
        let token = issuer.sign(&header(), &with(&changes));
        assert!(holder_of(&token, &known, &rules(), NOW).is_ok(), "{changes}");
    }
}

#[test]
fn a_token_that_the_issuer_has_not_signed_is_refused() {
    let (issuer, other) = (Issuer::new(), Issuer::new());
    let known = keys(&[issuer.jwk("one")]);
    let refused = |token: &str| holder_of(token, &known, &rules(), NOW).expect_err("refused");
    assert_eq!(refused(&other.sign(&header(), &claims())), TokenError::Signature);
    let unknown = issuer.sign(&json!({"alg": "ES256", "kid": "two"}), &claims());
    assert_eq!(refused(&unknown), TokenError::Key);

    let good = issuer.sign(&header(), &claims());
    let (message, signature) = good.rsplit_once('.').expect("a signature");
    let (first, payload) = message.split_once('.').expect("claims");
    let forged = BASE64.encode(with(&json!({"sub": "admin"})).to_string());
    assert_eq!(refused(&format!("{first}.{forged}.{signature}")), TokenError::Signature);
    for (alg, signature) in [("none", ""), ("none", signature), ("NONE", ""), ("HS256", signature)]
    {
        let first = BASE64.encode(json!({"alg": alg, "kid": "one"}).to_string());
        let unsigned = format!("{first}.{payload}.{signature}");
        assert_eq!(refused(&unsigned), TokenError::Algorithm, "{alg}");
    }
    let critical = json!({"alg": "ES256", "kid": "one", "crit": ["exp"]});
    assert_eq!(refused(&issuer.sign(&critical, &claims())), TokenError::Malformed);
    for cut in 0..good.len() {
        assert!(holder_of(&good[..cut], &known, &rules(), NOW).is_err(), "cut at {cut}");
    }
    assert_eq!(refused(&"a".repeat(TOKEN_SIZE_BYTES_MAX + 1)), TokenError::Malformed);
    assert_eq!(refused(SIGNED_BY_RS256), TokenError::Key, "no key of RSA is known");
}

#[test]
fn shared_secrets_and_keys_for_encryption_are_no_keys() {
    let secret = json!({"kty": "oct", "k": BASE64.encode("secret"), "alg": "HS256"});
    let mut encrypting = Issuer::new().jwk("one");
    encrypting["use"] = json!("enc");
    let text = json!({"keys": [secret, encrypting, {"kty": "new"}, 7]}).to_string();
    assert!(matches!(TokenKeys::parse(&text), Err(TokenKeysError::None)));
    assert!(matches!(TokenKeys::parse("{}"), Err(TokenKeysError::Malformed(_))));
    let many = vec![Issuer::new().jwk("one"); 65];
    let text = json!({ "keys": many }).to_string();
    assert!(matches!(TokenKeys::parse(&text), Err(TokenKeysError::TooMany)));
}
