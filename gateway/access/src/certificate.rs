//! Who a client is by its certificate. Says nothing of trust: the TLS handshake has verified the chain.
//!
//! **Source**: RFC 2253; `sun.security.x509.AVA.toRFC2253String`, by which Kafka names the users of certificates.

mod name_rules;

use std::fmt::Write as _;

use serde::Deserialize;
use x509_parser::asn1_rs::{Any, Tag, ToDer as _};
use x509_parser::certificate::X509Certificate;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::FromDer as _;
use x509_parser::x509::{AttributeTypeAndValue, X509Name};

pub use self::name_rules::{NameRuleError, NameRules};
use crate::principal::Principal;

/// The last label of the names that nodes and links have.
const OWN_DOMAIN: &str = "meridian";
const SPIFFE_SCHEME: &str = "spiffe://";
const COMMON_NAME: &str = "2.5.4.3";

/// The attribute types that RFC 2253 has a word for.
const KEYWORDS: [(&str, &str); 9] = [
    (COMMON_NAME, "CN"),
    ("2.5.4.6", "C"),
    ("2.5.4.7", "L"),
    ("2.5.4.8", "ST"),
    ("2.5.4.9", "STREET"),
    ("2.5.4.10", "O"),
    ("2.5.4.11", "OU"),
    ("0.9.2342.19200300.100.1.25", "DC"),
    ("0.9.2342.19200300.100.1.1", "UID"),
];

/// The types of values that are written as text.
const TEXT: [Tag; 6] = [
    Tag::PrintableString,
    Tag::T61String,
    Tag::Ia5String,
    Tag::GeneralString,
    Tag::BmpString,
    Tag::Utf8String,
];

/// What of a certificate names the user.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum UserName {
    /// The whole subject, as Java writes it.
    #[default]
    #[serde(rename = "DN")]
    Dn,
    /// The common name of the subject.
    #[serde(rename = "CN")]
    Cn,
    /// The SPIFFE id among the alternative names.
    #[serde(rename = "SPIFFE")]
    Spiffe,
    /// The DNS name among the alternative names.
    #[serde(rename = "DNS")]
    Dns,
}

impl UserName {
    const fn what(self) -> &'static str {
        match self {
            Self::Dn => "subject",
            Self::Cn => "common name (CN)",
            Self::Spiffe => "SPIFFE id (a URI spiffe://...)",
            Self::Dns => "DNS name",
        }
    }
}

/// A certificate that names no user.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CertificateError {
    /// It can't be read.
    #[error("the client's certificate can't be read: {detail}")]
    Malformed {
        /// What the parser said.
        detail: String,
    },
    /// It is for a part of a cluster, not for a client.
    #[error(
        "the client's certificate is that of a node or a link ({name}); make the client one of its own"
    )]
    OfTheCluster {
        /// The name in it.
        name: String,
    },
    /// What is to name the user is missing, or there are several.
    #[error(
        "the client's certificate must have one {what}, which names its user here, and has {count}"
    )]
    Ambiguous {
        /// What names the user.
        what: &'static str,
        /// How many there are.
        count: usize,
    },
    /// No rule makes a user's name of it.
    #[error(
        "no rule makes a user of the client's certificate ({name}); add one for it, or DEFAULT at the end"
    )]
    NoRule {
        /// The name in it.
        name: String,
    },
    /// The name stands for others than this client.
    #[error(
        "the client's certificate names {name:?}, which is no name of a user; issue one with another name"
    )]
    NoUser {
        /// The name.
        name: String,
    },
}

/// The user that a certificate is for: `rules` are for what names it.
pub fn user_of(
    certificate: &[u8],
    by: UserName,
    rules: &NameRules,
) -> Result<Principal, CertificateError> {
    let malformed = |detail: String| CertificateError::Malformed { detail };
    let (_, certificate) =
        X509Certificate::from_der(certificate).map_err(|error| malformed(error.to_string()))?;
    let subject = certificate.subject();
    let extension =
        certificate.subject_alternative_name().map_err(|error| malformed(error.to_string()))?;
    let alternatives = extension.map(|it| &it.value.general_names[..]).unwrap_or_default();
    let dns_names = alternatives.iter().filter_map(|it| match it {
        GeneralName::DNSName(name) => Some(*name),
        _ => None,
    });
    if let Some(name) = dns_names.clone().find(|name| is_of_the_cluster(name)) {
        return Err(CertificateError::OfTheCluster { name: name.to_owned() });
    }
    let uris = alternatives.iter().filter_map(|it| match it {
        GeneralName::URI(uri) => Some(*uri),
        _ => None,
    });
    let names: Vec<String> = match by {
        UserName::Dn => vec![distinguished_name(subject)],
        UserName::Cn => {
            let is_common =
                |it: &&AttributeTypeAndValue<'_>| it.attr_type().to_id_string() == COMMON_NAME;
            subject.iter_attributes().filter(is_common).map(|it| text(it.attr_value())).collect()
        }
        UserName::Spiffe => {
            uris.filter(|uri| uri.starts_with(SPIFFE_SCHEME)).map(str::to_owned).collect()
        }
        UserName::Dns => dns_names.map(str::to_ascii_lowercase).collect(),
    };
    let [name] = &names[..] else {
        return Err(CertificateError::Ambiguous { what: by.what(), count: names.len() });
    };
    if name.is_empty() {
        return Err(CertificateError::Ambiguous { what: by.what(), count: 0 });
    }
    let no_rule = || CertificateError::NoRule { name: name.clone() };
    match &*rules.apply(name).ok_or_else(no_rule)? {
        "" => Err(no_rule()),
        // What is no text would be the same name for several certificates.
        name if is_reserved(name) || name.contains(char::REPLACEMENT_CHARACTER) => {
            Err(CertificateError::NoUser { name: name.to_owned() })
        }
        name => Ok(Principal::user(name)),
    }
}

fn is_reserved(name: &str) -> bool {
    name == Principal::ANONYMOUS_NAME || name == Principal::WILDCARD_NAME
}

fn is_of_the_cluster(dns_name: &str) -> bool {
    let last = dns_name.trim_end_matches('.').rsplit('.').next();
    last.is_some_and(|label| label.eq_ignore_ascii_case(OWN_DOMAIN))
}

/// A name as `X500Principal.getName()` of Java writes it.
fn distinguished_name(name: &X509Name<'_>) -> String {
    let mut parts: Vec<String> = name
        .iter_rdn()
        .map(|part| part.iter().map(attribute).collect::<Vec<_>>().join("+"))
        .collect();
    parts.reverse();
    parts.join(",")
}

fn attribute(attribute: &AttributeTypeAndValue<'_>) -> String {
    let (oid, value) = (attribute.attr_type().to_id_string(), attribute.attr_value());
    let keyword = KEYWORDS.iter().find(|(known, _)| *known == oid).map(|(_, keyword)| *keyword);
    match keyword.filter(|_| TEXT.contains(&value.tag())) {
        Some(keyword) => format!("{keyword}={}", escaped(&text(value))),
        None => format!("{}=#{}", keyword.unwrap_or(&oid), hex(value)),
    }
}

fn text(value: &Any<'_>) -> String {
    String::from_utf8_lossy(value.data).into_owned()
}

/// The value with its type and length.
fn hex(value: &Any<'_>) -> String {
    let bytes = value.to_der_vec().unwrap_or_default();
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _infallible = write!(text, "{byte:02x}");
        text
    })
}

fn escaped(text: &str) -> String {
    let is_space = |letter: char| matches!(letter, ' ' | '\r');
    let lead = text.len() - text.trim_start_matches(is_space).len();
    let trail = text.trim_end_matches(is_space).len();
    let mut written = String::with_capacity(text.len());
    for (at, letter) in text.char_indices() {
        match letter {
            ',' | '=' | '+' | '<' | '>' | '#' | ';' | '"' | '\\' => written.extend(['\\', letter]),
            '\0' => written.push_str("\\00"),
            _ if at < lead || at >= trail => written.extend(['\\', letter]),
            _ => written.push(letter),
        }
    }
    written
}

#[cfg(test)]
mod tests;
