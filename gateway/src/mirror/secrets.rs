//! The secrets of links: sealed in their rows, opened where a connection is made, and shown nowhere.

use std::collections::BTreeMap;

use meridian_consensus::state::Metadata;
use meridian_mirror::options::{LinkOptions, is_secret};

use super::plan::{self, Source};
use crate::health::own::SecretsObserved;
use crate::runtime::secrets::{Keyring, SecretError};

/// Why the secrets of a link can't be used here.
#[derive(Debug, thiserror::Error)]
#[error("{option}: {source}")]
pub(super) struct Unopened {
    option: String,
    source: SecretError,
}

/// A secret opens only for the cluster that it is to be shown to.
fn place(source: &Source, option: &str) -> String {
    format!("link to {} {option}", source.link.source)
}

fn changed(
    source: &Source,
    change: impl Fn(&str, &str) -> Result<String, SecretError>,
) -> Result<LinkOptions, Unopened> {
    let change = |(name, value): (&String, &String)| {
        let unopened = |source| Unopened { option: name.clone(), source };
        let value = match is_secret(name) {
            true => change(&place(source, name), value).map_err(unopened)?,
            false => value.clone(),
        };
        Ok((name.clone(), value))
    };
    let values: Result<BTreeMap<String, String>, Unopened> =
        source.options.values.iter().map(change).collect();
    Ok(LinkOptions { values: values? })
}

/// A link's options with its secrets in clear.
pub(super) fn opened(keys: &Keyring, source: &Source) -> Result<LinkOptions, Unopened> {
    changed(source, |place, value| Ok(keys.open(place, value)?.0))
}

/// A link's options as their rows keep them: those secrets are sealed that are not under the key of now.
pub(super) fn sealed(keys: &Keyring, source: &Source) -> Result<LinkOptions, Unopened> {
    changed(source, |place, value| match keys.is_current(value) {
        true => Ok(value.to_owned()),
        false => keys.seal(place, &keys.open(place, value)?.0),
    })
}

/// Whether an option is a secret in clear.
pub(super) fn has_clear(options: &LinkOptions) -> bool {
    options.values.iter().any(|(name, value)| is_secret(name) && !Keyring::is_sealed(value))
}

/// Whether a secret is in clear, or sealed under another key than that of now.
pub(super) fn is_stale(keys: &Keyring, options: &LinkOptions) -> bool {
    options.values.iter().any(|(name, value)| is_secret(name) && !keys.is_current(value))
}

/// Looks at the secrets of all links.
pub(crate) fn observe(metadata: &Metadata, keys: &Keyring) -> SecretsObserved {
    let mut observed = SecretsObserved::default();
    for (name, link) in plan::links(metadata) {
        let options = plan::options(metadata, &name);
        if has_clear(&options) {
            observed.in_clear.push(name.clone());
        }
        if let Err(why) = opened(keys, &Source { link, options }) {
            observed.unopened.push((name, why.to_string()));
        }
    }
    observed
}

#[cfg(test)]
mod tests {
    use meridian_mirror::rows::Link;

    use meridian_base::id::ClusterId;

    use super::*;

    fn keys(letters: &[&str]) -> Keyring {
        let keys: Vec<String> = letters.iter().map(|letter| letter.repeat(64)).collect();
        Keyring::parse(&keys.join(","), "test").unwrap()
    }

    fn source(to: &str, options: LinkOptions) -> Source {
        let link = Link {
            bootstrap: "west:9092".to_owned(),
            source: ClusterId::from_text(to),
            bytes_per_second_max: None,
            is_paused: false,
        };
        Source { link, options }
    }

    fn clear() -> LinkOptions {
        let values = [
            ("sasl.username", "mirror"),
            ("sasl.password", "hush"),
            ("ssl.key.pem", "-----BEGIN PRIVATE KEY-----"),
            ("ssl.ca.pem", "-----BEGIN CERTIFICATE-----"),
        ];
        LinkOptions { values: values.map(|(name, value)| (name.into(), value.into())).into() }
    }

    #[test]
    fn secrets_are_sealed_and_what_is_none_stays_as_it_is() {
        let (clear, keys) = (source("west", clear()), keys(&["a"]));
        let sealed = source("west", sealed(&keys, &clear).unwrap());
        let rows = format!("{:?}", sealed.options.rows("west"));
        let value = |name: &str| sealed.options.values[name].as_str();
        assert!(value("sasl.password").starts_with("sealed:1:"));
        assert!(value("ssl.key.pem").starts_with("sealed:1:"));
        assert_eq!((value("sasl.username"), value("ssl.ca.pem").len()), ("mirror", 27));
        assert!(has_clear(&clear.options) && !has_clear(&sealed.options), "{rows}");
        assert_eq!(opened(&keys, &sealed).unwrap(), clear.options);
        assert_eq!(super::sealed(&keys, &sealed).unwrap(), sealed.options, "connections go on");
        assert_eq!(sealed.options.shown(), clear.options.shown());
        let elsewhere = source("east", sealed.options);
        let said = opened(&keys, &elsewhere).unwrap_err().to_string();
        assert!(said.starts_with("sasl.password: the sealed value was changed"), "{said}");
    }

    #[test]
    fn a_node_without_the_key_says_so_and_another_key_takes_over() {
        let (old, both, new) = (keys(&["a"]), keys(&["b", "a"]), keys(&["b"]));
        let first = source("west", sealed(&old, &source("west", clear())).unwrap());
        let said = opened(&new, &first).unwrap_err().to_string();
        assert!(said.starts_with("sasl.password: sealed under key "), "{said}");
        assert!(is_stale(&both, &first.options) && !is_stale(&old, &first.options));
        let second = source("west", sealed(&both, &first).unwrap());
        assert_eq!(opened(&new, &second).unwrap(), clear());
        assert!(sealed(&Keyring::default(), &second).is_err());
    }
}
