//! Options of connections by the names that Kafka's clients have for them, from the command line or from a client's
//! own properties file. Files that they name are read here.

use std::collections::BTreeMap;
use std::path::Path;

use meridian_client::security::canonical;

use crate::failure::Failure;

/// In Java's properties files: user and password.
const JAAS: &str = "sasl.jaas.config";
/// Where Java keeps certificate and key in one file.
const KEYSTORE: &str = "ssl.keystore.location";
/// Under which names those two are kept.
const CERTIFICATE: &str = "ssl.certificate.pem";
const KEY: &str = "ssl.key.pem";
/// What properties files of clients also say, and what is no matter of security.
const IGNORED: [&str; 3] = ["client.id", "ssl.truststore.type", "ssl.keystore.type"];
/// The brokers, in a properties file.
pub(crate) const BOOTSTRAP: &str = "bootstrap.servers";

/// The options of a properties file.
pub(crate) fn properties(path: &Path) -> Result<Vec<(String, String)>, Failure> {
    let text = std::fs::read_to_string(path).map_err(Failure::file(path))?;
    let lines = (1..).zip(text.lines()).map(|(number, line)| (number, line.trim()));
    let mut options = Vec::new();
    for (number, line) in lines.filter(|(_, it)| !it.is_empty() && !it.starts_with('#')) {
        let refused = || Failure::Invalid(format!("{}:{number}: not NAME=VALUE", path.display()));
        let (name, value) = pair(line).ok_or_else(refused)?;
        if !IGNORED.contains(&name) {
            options.push((name.to_owned(), lines_of(value)));
        }
    }
    Ok(options)
}

/// A PEM text in one line, as Java's properties files have it: with `\n` for the end of a line.
fn lines_of(value: &str) -> String {
    if value.starts_with("-----BEGIN ") { value.replace("\\n", "\n") } else { value.to_owned() }
}

/// A name and its value.
pub(crate) fn pair(text: &str) -> Option<(&str, &str)> {
    text.split_once('=').map(|(name, value)| (name.trim(), value.trim()))
}

/// Reads one option under the name that the server keeps it by, `None` for one that is to be taken away; files are relative to a folder.
pub(crate) fn read_option(
    options: &mut BTreeMap<String, Option<String>>,
    name: &str,
    value: &str,
    folder: &Path,
) -> Result<(), Failure> {
    let read = |value: &str| read(&folder.join(value));
    if name == JAAS {
        for (attribute, option) in [("username", "sasl.username"), ("password", "sasl.password")] {
            let found = jaas(value, attribute)
                .ok_or_else(|| Failure::Invalid(format!("{JAAS} has no {attribute}=\"...\"")))?;
            options.insert(option.to_owned(), Some(found));
        }
        if jaas(value, "tokenauth").is_some_and(|it| it.eq_ignore_ascii_case("true")) {
            options.insert("sasl.tokenauth".to_owned(), Some("true".to_owned()));
        }
        return Ok(());
    }
    let told = match name {
        _ if value.is_empty() => None,
        KEYSTORE => {
            let content = read(value)?;
            let certificates = sections(&content, "CERTIFICATE");
            options.insert(CERTIFICATE.to_owned(), Some(certificates));
            options.insert(KEY.to_owned(), Some(sections(&content, "PRIVATE KEY")));
            return Ok(());
        }
        _ if name.ends_with(".location") => Some(read(value)?),
        _ => Some(value.to_owned()),
    };
    options.insert(canonical(name).to_owned(), told);
    Ok(())
}

fn read(path: &Path) -> Result<String, Failure> {
    let content = std::fs::read(path).map_err(Failure::file(path))?;
    String::from_utf8(content).map_err(|_| {
        let advice = "export the certificates of a JKS or PKCS#12 store with keytool or openssl";
        Failure::Invalid(format!("{}: not in PEM form; {advice}", path.display()))
    })
}

/// The sections of a PEM text whose label ends so.
fn sections(pem: &str, label: &str) -> String {
    let end = format!("{label}-----");
    let mut is_inside = false;
    let mut kept = String::new();
    for line in pem.lines() {
        is_inside |= line.starts_with("-----BEGIN ") && line.ends_with(&end);
        if is_inside {
            kept.push_str(line);
            kept.push('\n');
        }
        is_inside &= !line.starts_with("-----END ");
    }
    kept
}

/// The value of an attribute in `...LoginModule required username="u" password="p";`.
fn jaas(text: &str, attribute: &str) -> Option<String> {
    let (_, rest) = text.split_once(&format!("{attribute}=\""))?;
    let mut value = String::new();
    let mut letters = rest.chars();
    loop {
        match letters.next()? {
            '"' => return Some(value),
            '\\' => value.push(letters.next()?),
            letter => value.push(letter),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_taken_apart() {
        let key = "-----BEGIN PRIVATE KEY-----\nk\n-----END PRIVATE KEY-----\n";
        let one = "-----BEGIN CERTIFICATE-----\nc\n-----END CERTIFICATE-----\n";
        let store = format!("about\n{key}between\n{one}{one}");
        assert_eq!(sections(&store, "PRIVATE KEY"), key);
        assert_eq!(sections(&store, "CERTIFICATE"), one.repeat(2));
        assert_eq!(lines_of(&one.replace('\n', "\\n")), one);
        assert_eq!(lines_of("a\\nb"), "a\\nb", "a password is as it is");
    }
}
