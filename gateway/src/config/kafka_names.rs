//! Settings of the `[kafka]` table under Kafka's own names.
//!
//! A dotted key is a path of tables in TOML, so `transaction.max.timeout.ms = 900000` may stand as it does in
//! Kafka's `server.properties`; a name that begins another one, such as `max.connections`, is quoted.

use toml::{Table, Value};

use super::ConfigError;
use crate::config::FrontConfig;
use crate::config::settings;

/// Takes Kafka's names out of the table; what is left has names of ours.
pub(super) fn take_out(table: &mut Table) -> Vec<(String, Value)> {
    let (named, ours) = std::mem::take(table)
        .into_iter()
        .partition(|(key, value)| key.contains('.') || value.is_table());
    *table = ours;
    let mut settings = Vec::new();
    flatten(String::new(), named, &mut settings);
    settings
}

fn flatten(path: String, table: Table, out: &mut Vec<(String, Value)>) {
    for (key, value) in table {
        let name = if path.is_empty() { key } else { format!("{path}.{key}") };
        match value {
            Value::Table(inner) => flatten(name, inner, out),
            value => out.push((name, value)),
        }
    }
}

/// Applies them.
pub(super) fn apply(
    settings: Vec<(String, Value)>,
    front: &mut FrontConfig,
) -> Result<(), ConfigError> {
    for (name, value) in settings {
        let problem = |problem| ConfigError::Kafka { name: name.clone(), problem };
        let known = settings::find(&name).ok_or_else(|| {
            let known: Vec<&str> = settings::ALL.iter().map(|setting| setting.name).collect();
            problem(format!("is no setting of a node; there are {}", known.join(", ")))
        })?;
        let text = match value {
            Value::String(text) => text,
            value => value.to_string(),
        };
        known.take(front, &text).map_err(problem)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<(FrontConfig, Table), ConfigError> {
        let mut table: Table = toml::from_str(text)?;
        let mut front = FrontConfig::default();
        apply(take_out(&mut table), &mut front)?;
        Ok((front, table))
    }

    #[test]
    fn names_of_kafka_are_understood_dotted_and_quoted() {
        let (front, ours) = parse(
            "group_size_max = 7\ntransaction.max.timeout.ms = 1000\n\
             \"max.connections\" = 5\n\"max.connections.per.ip\" = \"4\"\n\
             group.max.size = 9\nauto.create.topics.enable = false\n",
        )
        .unwrap();
        assert_eq!(front.transaction.timeout_max, std::time::Duration::from_secs(1));
        assert_eq!((front.connection_count_max, front.connection_count_per_ip_max), (5, 4));
        assert_eq!(front.group.member_count_max, 9);
        assert!(!front.auto_create_topics);
        assert_eq!(ours.keys().collect::<Vec<_>>(), ["group_size_max"]);
    }

    #[test]
    fn mistakes_name_their_key() {
        for (text, told) in [
            ("log.dirs = \"/tmp\"", "log.dirs"),
            ("group.max.size = 0", "group.max.size: 0 is not a number"),
            ("auto.create.topics.enable = 1", "true or false"),
        ] {
            let error = parse(text).err().map(|error| error.to_string()).unwrap_or_default();
            assert!(error.contains(told), "{error}");
        }
    }
}
