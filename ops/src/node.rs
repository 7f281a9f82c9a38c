//! `meridian node`: the nodes, what each knows of itself, and how they rest, leave and are replaced.

pub(crate) mod lifecycle;

use clap::{Args, Subcommand};
use meridian_admin_api::NoArguments;
use meridian_admin_api::methods::NodeStatus;
use meridian_admin_api::node::OwnStatus;
use serde::Serialize;
use serde_json::Value;

use self::lifecycle::Lifecycle;
use crate::client::{Client, api};
use crate::cluster;
use crate::failure::{Exit, Failure};
use crate::output::{self, Table};
use crate::target::Target;

/// Inspect nodes, and let them rest, leave or be replaced
#[derive(Debug, Args)]
pub(crate) struct Node {
    #[command(flatten)]
    target: Target,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the nodes, and what the cluster thinks of them
    ///
    /// Example: meridian node list
    List,
    /// Show what a node says of its own disk and of its connections to the others
    ///
    /// Example: meridian node describe 4
    #[command(visible_alias = "status")]
    Describe {
        /// Its id
        id: i32,
    },
    #[command(flatten)]
    Lifecycle(Lifecycle),
}

/// Runs the command.
pub(crate) async fn run(node: Node) -> Result<Exit, Failure> {
    let Node { target, command } = node;
    let client = target.connect().await?;
    match command {
        Command::List => {
            let status = cluster::ask(&client).await?;
            output::print(target.output, &status.nodes, |nodes| cluster::render_nodes(nodes))?;
        }
        Command::Describe { id } => {
            let status = own_status(&client, id).await?;
            output::print(target.output, &status, render)?;
        }
        Command::Lifecycle(command) => {
            let stand = lifecycle::run(&client, command).await?;
            output::print(target.output, &stand, render)?;
        }
    }
    Ok(Exit::Ok)
}

async fn own_status(client: &Client, id: i32) -> Result<OwnStatus, Failure> {
    client.refresh(Some(&[])).await?;
    api::call_node::<NodeStatus>(client, id, &NoArguments {}).await
}

/// All that is said of something as lines and tables: plain values, and lists of objects of such.
pub(crate) fn render<T: Serialize>(said: &T) -> String {
    serde_json::to_value(said).map_or_else(|error| format!("{error}\n"), |said| lines(&said))
}

fn lines(said: &Value) -> String {
    let Value::Object(fields) = said else { return format!("{said}\n") };
    let mut plain = Table::new(&["", ""]);
    let mut text = String::new();
    for (name, value) in fields {
        match value {
            Value::Array(rows) if !rows.is_empty() => {
                text.push_str(&format!("\n{name}:\n{}", render_rows(rows)));
            }
            Value::Object(inner) => {
                for (key, value) in inner {
                    plain.row([format!("{name}.{key}"), cell(value)]);
                }
            }
            value => plain.row([name.clone(), cell(value)]),
        }
    }
    format!("{}{text}", plain.render().trim_start_matches('\n'))
}

fn render_rows(rows: &[Value]) -> String {
    let Some(Value::Object(first)) = rows.first() else {
        return rows.iter().map(|row| format!("{}\n", cell(row))).collect();
    };
    let names: Vec<&str> = first.keys().map(String::as_str).collect();
    let header: Vec<String> = names.iter().map(|name| name.to_uppercase()).collect();
    let mut table = Table::new(&header.iter().map(String::as_str).collect::<Vec<_>>());
    for row in rows {
        table.cells(names.iter().map(|name| cell(row.get(name).unwrap_or(&Value::Null))).collect());
    }
    table.render()
}

fn cell(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => text.clone(),
        value => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_readable_whatever_is_in_it() {
        let status = serde_json::json!({
            "id": 1, "disk": {"standing": "Good"}, "note": null,
            "peers": [{"id": 2, "up": true}, {"id": 3, "up": false}],
        });
        assert_eq!(
            render(&status),
            "disk.standing  Good\nid             1\nnote           -\n\n\
             peers:\nID  UP\n 2  true\n 3  false\n"
        );
    }
}
