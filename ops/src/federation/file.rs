//! The file: what it may say, and where it says it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use meridian_admin_api::mirror;
use serde::Deserialize;
use serde_saphyr::{Location, Spanned};

use crate::failure::Failure;

/// A value and where it is.
pub(super) type At<T> = Spanned<T>;

/// All that a file may say.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Document {
    links: BTreeMap<String, At<Link>>,
    topics: BTreeMap<String, At<Topic>>,
    mirrors: BTreeMap<String, At<Mirror>>,
    rules: Vec<At<Rule>>,
}

/// A file that was read.
#[derive(Debug)]
pub(super) struct File {
    path: PathBuf,
    pub(super) links: BTreeMap<String, At<Link>>,
    pub(super) topics: BTreeMap<String, At<Topic>>,
    pub(super) mirrors: BTreeMap<String, At<Mirror>>,
    pub(super) rules: Vec<At<Rule>>,
}

/// A link to a source cluster.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Link {
    pub(super) source: String,
    pub(super) bytes_per_second: Option<u64>,
    pub(super) paused: Option<bool>,
    /// By the names of Kafka's clients.
    #[serde(default)]
    pub(super) options: BTreeMap<String, At<String>>,
}

/// A topic of the cluster's own.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Topic {
    pub(super) partitions: Option<u32>,
    #[serde(default)]
    pub(super) configs: BTreeMap<String, At<String>>,
}

/// A mirror of one topic.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Mirror {
    pub(super) link: At<String>,
    pub(super) source_topic: Option<String>,
    pub(super) on_delete: Option<Policy>,
    pub(super) on_recreate: Option<Policy>,
}

/// Topics or groups that follow by themselves.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Rule {
    pub(super) link: At<String>,
    pub(super) topics: Option<String>,
    pub(super) groups: Option<String>,
    pub(super) exclude: Option<String>,
    pub(super) prefix: Option<String>,
    pub(super) on_delete: Option<Policy>,
    pub(super) on_recreate: Option<Policy>,
}

/// What becomes of a mirror whose source goes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Policy {
    #[default]
    Stop,
    Follow,
    Promote,
}

impl Policy {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Follow => "follow",
            Self::Promote => "promote",
        }
    }
}

impl From<Policy> for mirror::Policy {
    fn from(policy: Policy) -> Self {
        match policy {
            Policy::Stop => Self::Stop,
            Policy::Follow => Self::Follow,
            Policy::Promote => Self::Promote,
        }
    }
}

impl File {
    pub(super) fn read(path: &Path) -> Result<Self, Failure> {
        let text = std::fs::read_to_string(path).map_err(Failure::file(path))?;
        Self::parse(path, &text)
    }

    pub(super) fn parse(path: &Path, text: &str) -> Result<Self, Failure> {
        let document: Document = serde_saphyr::from_str(text).map_err(|error| {
            let (line, column) =
                error.location().map_or((0, 0), |place| (place.line(), place.column()));
            // The rest of what it says shows the line, which is in the file for all to see.
            let said = error.to_string();
            let said = said.lines().next().unwrap_or_default().trim_start_matches("error: ");
            let place = format!("line {line} column {column}: ");
            let said = match said.strip_prefix(&place).unwrap_or(said) {
                "invalid u32" | "invalid u64" => "not a whole number",
                // What follows is for who calls the parser.
                said => said.split_once(", set DuplicateKeyPolicy").map_or(said, |(said, _)| said),
            };
            Failure::Invalid(format!("{}:{line}:{column}: {said}", path.display()))
        })?;
        let Document { links, topics, mirrors, rules } = document;
        Ok(Self { path: path.to_owned(), links, topics, mirrors, rules })
    }

    /// An error about something at a place.
    pub(super) fn error(&self, place: &Location, what: impl std::fmt::Display) -> Failure {
        let (line, column) = (place.line(), place.column());
        Failure::Invalid(format!("{}:{line}:{column}: {what}", self.path.display()))
    }

    /// The folder that paths in it are relative to.
    pub(super) fn folder(&self) -> &Path {
        self.path.parent().unwrap_or_else(|| Path::new(""))
    }

    /// A value in which `${NAME}` is replaced by what the environment says.
    pub(super) fn expanded(
        &self,
        text: &At<String>,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<String, Failure> {
        let mut expanded = String::new();
        let mut rest = text.value.as_str();
        while let Some((before, after)) = rest.split_once("${") {
            let Some((name, behind)) = after.split_once('}') else { break };
            let unset = || self.error(&text.referenced, format!("${{{name}}} is not set"));
            expanded.push_str(before);
            expanded.push_str(&environment(name).ok_or_else(unset)?);
            rest = behind;
        }
        expanded.push_str(rest);
        Ok(expanded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<File, String> {
        File::parse(Path::new("f.yaml"), text).map_err(|error| error.to_string())
    }

    #[test]
    fn what_a_file_says_is_understood() {
        let file = parse(
            "links:\n  west:\n    source: a:1,b:2\n    options:\n      sasl.password: ${P}x\n\
             topics:\n  t:\n    partitions: 3\n    configs:\n      retention.ms: 86400000\n\
             mirrors:\n  m:\n    link: west\n    on_delete: promote\n\
             rules:\n  - link: west\n    topics: 'o\\..*'\n    prefix: w.\n",
        )
        .unwrap();
        assert_eq!(file.links["west"].value.source, "a:1,b:2");
        assert_eq!(file.topics["t"].value.configs["retention.ms"].value, "86400000");
        assert_eq!(file.mirrors["m"].value.on_delete, Some(Policy::Promote));
        assert_eq!(file.rules[0].value.topics.as_deref(), Some("o\\..*"));
        let password = &file.links["west"].value.options["sasl.password"];
        let of = |value: Option<&str>| {
            let value = value.map(str::to_owned);
            file.expanded(password, |_| value.clone()).map_err(|error| error.to_string())
        };
        assert_eq!(of(Some("hush")).unwrap(), "hushx");
        assert_eq!(of(None).unwrap_err(), "f.yaml:5:22: ${P} is not set");
    }

    #[test]
    fn errors_have_line_and_column() {
        for (text, place) in [
            ("links:\n  west:\n    sourc: a:1\n", "f.yaml:3:"),
            ("topics:\n  t:\n    partitions: many\n", "f.yaml:3:17: not a whole number"),
            ("topics:\n  t: {}\n  t: {}\n", "f.yaml:3:3: duplicate mapping key: t"),
            ("mirrors:\n  m:\n    link: west\n    on_delete: shrug\n", "f.yaml:4:16: "),
            ("links: [\n", "f.yaml:"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.starts_with(place), "{text:?}: {error}");
        }
        assert!(parse("").is_ok_and(|file| file.links.is_empty()));
    }
}
