//! `meridian mirror groups`: positions of consumer groups that are carried over links.

use std::collections::BTreeMap;

use clap::Args;
use serde_json::{Value, json};

use crate::client::Client;
use crate::failure::{Exit, Failure};
use crate::link::cell;
use crate::output::{self, Format, Table};

/// Show the positions of consumer groups that are carried over links
///
/// States: carried (as at the source), clamped (at the end of the mirror, which is behind),
/// active-here (the group has members here: left alone), ahead-here (it was moved further here: left
/// alone). Exit code 2 if positions could not be carried.
///
/// Example: meridian mirror groups --link west
#[derive(Debug, Args)]
pub(super) struct Groups {
    /// Only this group
    group: Option<String>,
    /// Only over this link
    #[arg(long)]
    link: Option<String>,
}

impl Groups {
    pub(super) async fn run(self, client: &Client, format: Format) -> Result<Exit, Failure> {
        let mut links = Vec::new();
        for steward in stewards(client).await? {
            if self.link.as_ref().is_some_and(|link| steward["link"] != *link) {
                continue;
            }
            let groups = steward["groups"].as_array().into_iter().flatten();
            let is_asked = |it: &&Value| self.group.as_ref().is_none_or(|id| it["group"] == *id);
            let groups: Vec<&Value> = groups.filter(is_asked).collect();
            links.push(json!({
                "link": steward["link"], "failure": steward["groups_failure"], "groups": groups,
            }));
        }
        let is_well = links.iter().all(|link| link["failure"].is_null());
        output::print(format, &Value::from(links), render)?;
        Ok(if is_well { Exit::Ok } else { Exit::Degraded })
    }
}

fn render(links: &Value) -> String {
    let mut table =
        Table::new(&["LINK", "GROUP", "TOPIC", "PARTITION", "AT SOURCE", "HERE", "STATE"]);
    let mut notes = String::new();
    for link in links.as_array().into_iter().flatten() {
        for it in link["groups"].as_array().into_iter().flatten() {
            let names = ["group", "topic", "partition", "source_offset", "offset", "state"];
            let cells = names.iter().map(|name| cell(&it[*name]));
            table.cells(std::iter::once(cell(&link["link"])).chain(cells).collect());
        }
        if let Some(failure) = link["failure"].as_str() {
            notes.push_str(&format!("{}: {failure}\n", cell(&link["link"])));
        }
    }
    format!("{}{notes}", table.render())
}

/// What each link's steward says, wherever it is. A node that is down says nothing.
pub(crate) async fn stewards(client: &Client) -> Result<Vec<Value>, Failure> {
    super::from_all_nodes(client, "mirror.stewards").await
}

/// For each link, how many positions are in which state: `carried 12, active-here 3`.
pub(super) fn summary(stewards: &[Value]) -> Vec<(String, String)> {
    let mut lines = Vec::new();
    for steward in stewards {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for position in steward["groups"].as_array().into_iter().flatten() {
            *counts.entry(cell(&position["state"])).or_default() += 1;
        }
        let counts: Vec<String> =
            counts.into_iter().map(|(state, count)| format!("{state} {count}")).collect();
        if !counts.is_empty() {
            lines.push((cell(&steward["link"]), counts.join(", ")));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_are_counted_by_state() {
        let of = |state: &str| json!({"group": "g", "state": state});
        let groups = [of("carried"), of("active-here"), of("carried")];
        let stewards =
            [json!({"link": "west", "groups": groups}), json!({"link": "east", "groups": []})];
        let expected = [("west".to_owned(), "active-here 1, carried 2".to_owned())];
        assert_eq!(summary(&stewards), expected);
        let shown = render(&json!([{"link": "west", "groups": groups, "failure": "no way"}]));
        assert!(shown.contains("active-here") && shown.ends_with("west: no way\n"));
    }
}
