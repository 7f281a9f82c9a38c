//! Options by name, as Kafka's clients have them.

use std::collections::BTreeMap;

use meridian_access::Mechanism;

use super::quic::Quic;
use super::sasl::Sasl;
use super::tls::{Pem, Tls};
use super::{Security, SecurityError};

const PROTOCOL: &str = "security.protocol";
const MECHANISM: &str = "sasl.mechanism";
const USERNAME: &str = "sasl.username";
const PASSWORD: &str = "sasl.password";
const TOKEN: &str = "sasl.tokenauth";
const CA: &str = "ssl.ca.pem";
const CERTIFICATE: &str = "ssl.certificate.pem";
const KEY: &str = "ssl.key.pem";
const IDENTIFICATION: &str = "ssl.endpoint.identification.algorithm";

/// All options, by the names under which they are kept.
pub(super) const NAMES: &[&str] =
    &[PROTOCOL, MECHANISM, USERNAME, PASSWORD, TOKEN, CA, CERTIFICATE, KEY, IDENTIFICATION];

/// The name under which an option is kept, if it is known by another one too. Names of options whose
/// value is a path (`ssl.ca.location`) stand for the content of the file.
pub fn canonical(name: &str) -> &str {
    match name {
        "sasl.mechanisms" => MECHANISM,
        "ssl.ca.location" | "ssl.truststore.location" | "ssl.truststore.certificates" => CA,
        "ssl.certificate.location" | "ssl.keystore.certificate.chain" => CERTIFICATE,
        "ssl.key.location" | "ssl.keystore.key" => KEY,
        name => name,
    }
}

/// Reads options under the names in [`NAMES`].
pub(super) fn parse(options: &BTreeMap<String, String>) -> Result<Security, SecurityError> {
    if let Some(name) = options.keys().find(|name| !NAMES.contains(&name.as_str())) {
        return Err(SecurityError::Unknown { name: name.clone() });
    }
    let get = |name: &str| options.get(name).map(String::as_str);
    let protocol = get(PROTOCOL).unwrap_or("PLAINTEXT").to_ascii_uppercase();
    let is_quic = protocol == "QUIC";
    let (has_tls, has_sasl) = match protocol.as_str() {
        "QUIC" => (true, false),
        "PLAINTEXT" => (false, false),
        "SSL" => (true, false),
        "SASL_PLAINTEXT" => (false, true),
        "SASL_SSL" => (true, true),
        _ => {
            let possible =
                "it is PLAINTEXT, SSL, SASL_PLAINTEXT, SASL_SSL or, to a meridian cluster, QUIC";
            return Err(SecurityError::Invalid { name: PROTOCOL, value: protocol, possible });
        }
    };
    // What would be ignored is refused: who gives a certificate means it to be used.
    let useless = |prefix: &str, why| match options.keys().find(|name| name.starts_with(prefix)) {
        Some(name) => Err(SecurityError::Useless { name: name.clone(), why }),
        None => Ok(()),
    };
    if !has_tls {
        useless("ssl.", "security.protocol is neither SSL nor SASL_SSL nor QUIC")?;
    }
    if !has_sasl {
        useless("sasl.", "security.protocol is neither SASL_PLAINTEXT nor SASL_SSL")?;
    }
    if is_quic {
        useless(
            IDENTIFICATION,
            "the certificate authority is the source's own: it has no other hosts",
        )?;
    }
    Ok(Security {
        tls: if has_tls && !is_quic { Some(tls(&get)?) } else { None },
        quic: if is_quic { Some(quic(&get)?) } else { None },
        sasl: if has_sasl { Some(sasl(&get)?) } else { None },
        client_id: None,
        unusable: None,
    })
}

fn tls<'o>(get: &impl Fn(&str) -> Option<&'o str>) -> Result<Tls, SecurityError> {
    let why = "the certificate authority of the brokers (ssl.ca.location)";
    let ca = get(CA).ok_or(SecurityError::Missing { name: CA, why })?;
    let checks_host = match get(IDENTIFICATION).unwrap_or("https") {
        "https" => true,
        "" | "none" => false,
        value => {
            let (value, possible) = (value.to_owned(), "it is https or none");
            return Err(SecurityError::Invalid { name: IDENTIFICATION, value, possible });
        }
    };
    let own = match (get(CERTIFICATE), get(KEY)) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        (Some(_), None) => {
            return Err(SecurityError::Missing { name: KEY, why: "there is a certificate" });
        }
        (None, Some(_)) => {
            return Err(SecurityError::Missing { name: CERTIFICATE, why: "there is a key" });
        }
    };
    Tls::new(Pem { ca, own }, checks_host)
}

fn quic<'o>(get: &impl Fn(&str) -> Option<&'o str>) -> Result<Quic, SecurityError> {
    let needed = |name| {
        let why =
            "over QUIC both sides have certificates; `meridian cert link` at the source makes ours";
        get(name).ok_or(SecurityError::Missing { name, why })
    };
    let (ca, own) = (needed(CA)?, (needed(CERTIFICATE)?, needed(KEY)?));
    Quic::new(&Pem { ca, own: Some(own) })
}

fn sasl<'o>(get: &impl Fn(&str) -> Option<&'o str>) -> Result<Sasl, SecurityError> {
    let value = get(MECHANISM).unwrap_or_default();
    let mechanism = Mechanism::parse(value).ok_or_else(|| SecurityError::Invalid {
        name: MECHANISM,
        value: value.to_owned(),
        possible: "it is PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER",
    })?;
    let needed = |name| {
        let why = "SASL says who we are";
        get(name).map(str::to_owned).ok_or(SecurityError::Missing { name, why })
    };
    let username = match mechanism {
        Mechanism::Oauth => get(USERNAME).unwrap_or_default().to_owned(),
        _ => needed(USERNAME)?,
    };
    let is_by_token = match (get(TOKEN).unwrap_or("false"), mechanism) {
        ("false", _) => false,
        ("true", Mechanism::Scram(_)) => true,
        ("true", _) => {
            let why = "delegation tokens log in with SCRAM-SHA-256 or SCRAM-SHA-512";
            return Err(SecurityError::Useless { name: TOKEN.to_owned(), why });
        }
        (value, _) => {
            let (value, possible) = (value.to_owned(), "it is true or false");
            return Err(SecurityError::Invalid { name: TOKEN, value, possible });
        }
    };
    Ok(Sasl { mechanism, username, password: needed(PASSWORD)?, is_by_token })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(options: &[(&str, &str)]) -> Result<Security, String> {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        parse(&options.iter().map(own).collect()).map_err(|error| error.to_string())
    }

    #[test]
    fn options_are_understood_or_refused_never_ignored() {
        let user = [(USERNAME, "u"), (PASSWORD, "p")];
        assert!(parsed(&[]).is_ok_and(|it| it.tls.is_none() && it.sasl.is_none()));
        let scram = [&[(PROTOCOL, "sasl_plaintext"), (MECHANISM, "SCRAM-SHA-512")], &user[..]];
        assert!(parsed(&scram.concat()).is_ok_and(|it| it.sasl.is_some()));
        let delegated = [&scram.concat()[..], &[(TOKEN, "true")]].concat();
        assert!(parsed(&delegated).is_ok_and(|it| it.sasl.is_some_and(|it| it.is_by_token)));
        let plain = [(PROTOCOL, "SASL_PLAINTEXT"), (MECHANISM, "PLAIN")];
        let token = [(PROTOCOL, "SASL_PLAINTEXT"), (MECHANISM, "OAUTHBEARER"), (PASSWORD, "a.b.c")];
        assert!(parsed(&token).is_ok_and(|it| it.sasl.is_some()), "the token says who we are");
        for (options, said) in [
            (&[("ssl.protocol", "x")][..], "unknown option ssl.protocol"),
            (&[(PROTOCOL, "TLS")], "it is PLAINTEXT, SSL"),
            (&[(PROTOCOL, "SSL")], "ssl.ca.pem is needed"),
            (&[(PROTOCOL, "SSL"), (CA, "x")], "ssl.ca.pem: "),
            (&[(PROTOCOL, "QUIC"), (CA, "x")], "ssl.certificate.pem is needed"),
            (&[(PROTOCOL, "QUIC"), (USERNAME, "u")], "sasl.username is of no use"),
            (&[(PROTOCOL, "QUIC"), (IDENTIFICATION, "")], "identification.algorithm is of no use"),
            (&[(PROTOCOL, "SASL_PLAINTEXT"), (MECHANISM, "GSSAPI")], "it is PLAIN, SCRAM"),
            (&[(PROTOCOL, "SASL_PLAINTEXT"), (MECHANISM, "PLAIN")], "sasl.username is needed"),
            (&[&plain[..], &user[..], &[(TOKEN, "true")]].concat(), "sasl.tokenauth is of no use"),
            (&[&plain[..], &user[..], &[(TOKEN, "yes")]].concat(), "it is true or false"),
            (&user, "sasl.password is of no use"),
            (&[(CA, "x")], "ssl.ca.pem is of no use"),
        ] {
            let error = parsed(options).err().unwrap_or_default();
            assert!(error.contains(said), "{options:?}: {error}");
        }
    }

    #[test]
    fn secrets_are_not_in_what_is_printed() {
        let options = [
            (PROTOCOL, "SASL_PLAINTEXT"),
            (MECHANISM, "PLAIN"),
            (USERNAME, "u"),
            (PASSWORD, "hush-hush"),
        ];
        assert!(!format!("{:?}", parsed(&options)).contains("hush-hush"));
    }
}
