//! The command line of `cargo xtask clients`.

use std::path::PathBuf;

use super::cluster::Nodes;
use super::{CLIENTS, apps, security, suites};

const USAGE: &str = "usage: cargo xtask clients [CLIENT ...] | --smoke | --apps [APPLICATION ...] \
    | --suites [SUITE ...] | --security [PART ...] | --oracle [--nodes 1|3] [--records COUNT] [--kills COUNT] [--base-port PORT] [--profile NAME | --binary PATH]";
/// Those of the smallest run: each group of implementations once, and what installs within seconds.
const SMOKE: &[&str] = &["java-4", "librdkafka-python", "kafka-python", "kcat", "franz-go"];

/// What is to be run.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Options {
    /// Clients or applications; all of them if none is named.
    pub(super) targets: Vec<String>,
    /// Applications are run, not clients.
    pub(super) apps: bool,
    /// Suites of other projects are run.
    pub(super) suites: bool,
    /// Logins, users and access rules are tested.
    pub(super) security: bool,
    /// Decisions are compared with those of Kafka's own authorizer.
    pub(super) oracle: bool,
    /// How many nodes these run against; one and three, one after another, if absent.
    pub(super) nodes: Option<Nodes>,
    /// Records of the application that counts them.
    pub(super) record_count: u64,
    /// Kills meanwhile.
    pub(super) kill_count: u32,
    pub(super) base_port: u16,
    pub(super) profile: String,
    /// A server that is built already.
    pub(super) binary: Option<PathBuf>,
}

impl Options {
    pub(super) fn parse(arguments: &[String]) -> Result<Self, String> {
        let mut options = Self {
            targets: Vec::new(),
            apps: false,
            suites: false,
            security: false,
            oracle: false,
            nodes: None,
            record_count: 300_000,
            kill_count: 10,
            base_port: 29300,
            profile: "dev".to_owned(),
            binary: None,
        };
        let mut arguments = arguments.iter();
        let number = |text: Option<&String>| text.and_then(|text| text.parse().ok()).ok_or(USAGE);
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--apps" => options.apps = true,
                "--suites" => options.suites = true,
                "--security" => options.security = true,
                "--oracle" => options.oracle = true,
                "--nodes" => options.nodes = Some(nodes(arguments.next())?),
                "--smoke" => options.targets.extend(SMOKE.iter().map(|name| (*name).to_owned())),
                "--base-port" => options.base_port = narrow(number(arguments.next())?)?,
                "--records" => options.record_count = number(arguments.next())?,
                "--kills" => options.kill_count = narrow(number(arguments.next())?)?,
                "--binary" => options.binary = Some(arguments.next().ok_or(USAGE)?.into()),
                "--profile" => options.profile = arguments.next().ok_or(USAGE)?.clone(),
                name => options.targets.push(name.to_owned()),
            }
        }
        options.check()
    }

    fn check(self) -> Result<Self, String> {
        let known: Vec<&str> = if self.suites {
            suites::names()
        } else if self.security {
            security::names()
        } else if self.apps {
            apps::APPS.iter().map(|app| app.name).collect()
        } else {
            CLIENTS.iter().map(|client| client.name).collect()
        };
        match self.targets.iter().find(|name| !known.contains(&name.as_str())) {
            None => Ok(self),
            Some(name) => Err(format!("{name}: unknown; there are {}\n{USAGE}", known.join(", "))),
        }
    }

    pub(super) fn takes(&self, name: &str) -> bool {
        self.targets.is_empty() || self.targets.iter().any(|target| target == name)
    }
}

fn nodes(text: Option<&String>) -> Result<Nodes, String> {
    match text.map(String::as_str) {
        Some("1") => Ok(Nodes::One),
        Some("3") => Ok(Nodes::Three),
        _ => Err(USAGE.to_owned()),
    }
}

fn narrow<T: TryFrom<u64>>(number: u64) -> Result<T, String> {
    T::try_from(number).map_err(|_| USAGE.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Options, String> {
        Options::parse(&text.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn clients_and_options_are_understood() {
        let options = parse("kcat sarama --base-port 31000 --binary /m").unwrap();
        assert_eq!(options.binary.as_deref(), Some(std::path::Path::new("/m")));
        assert!(options.takes("kcat") && !options.takes("java-4"));
        assert_eq!(options.base_port, 31000);
        assert!(parse("").unwrap().takes("java-4"));
        assert!(parse("jav").unwrap_err().contains("java-4"));
        assert!(parse("--base-port x").is_err());
        assert!(parse("--base-port 70000").is_err());
        assert!(parse("--smoke").unwrap().takes("java-4"));
    }

    #[test]
    fn applications_are_named_after_their_option() {
        let options = parse("--apps streams count --records 10000000 --kills 100").unwrap();
        assert!(options.takes("streams") && !options.takes("connect"));
        assert_eq!((options.record_count, options.kill_count), (10_000_000, 100));
        assert!(parse("--apps kcat").unwrap_err().contains("mirrormaker"));
    }

    #[test]
    fn suites_are_named_after_their_option_and_run_at_one_size_or_both() {
        let options = parse("--suites franz-go --nodes 3").unwrap();
        assert!(options.suites && options.takes("franz-go") && !options.takes("sarama"));
        assert_eq!(options.nodes, Some(Nodes::Three));
        assert_eq!(parse("--suites").unwrap().nodes, None);
        assert!(parse("--suites --nodes 2").is_err());
        assert!(parse("--suites kcat").unwrap_err().contains("franz-go"));
    }

    #[test]
    fn parts_of_the_tests_of_logins_are_named_after_their_option() {
        let options = parse("--security tools").unwrap();
        assert!(options.security && options.takes("tools") && !options.takes("clients"));
        assert!(parse("--security java-4").unwrap_err().contains("librdkafka"));
    }
}
