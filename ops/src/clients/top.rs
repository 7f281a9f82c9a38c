//! `meridian client top`: which clients do the most, by two looks at all connections.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::{Args, ValueEnum};
use meridian_admin_api::client::Connection;
use meridian_admin_api::methods::ClientList;
use serde::Serialize;

use super::{Connected, Silent, Which, list, look, or_none, render_silent};
use crate::client::{Client, clock};
use crate::failure::{Exit, Failure};
use crate::output::{self, Format, Table};

/// Show the busiest clients: what each asks, sends and receives in a second
///
/// Looks twice at all connections. Connections of one principal and client id are added up.
///
/// Example: meridian client top --by out --count 5
#[derive(Debug, Args)]
pub(super) struct Top {
    #[command(flatten)]
    which: Which,
    /// What to sort by
    #[arg(long, value_enum, default_value = "out")]
    by: By,
    /// How many clients to show
    #[arg(long, default_value_t = 20)]
    count: usize,
    /// Seconds between the two looks
    #[arg(long, value_name = "SECONDS", default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=300))]
    interval: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum By {
    /// Bytes of answers
    Out,
    /// Bytes of requests
    In,
    /// Requests
    Requests,
}

/// What a client does in a second.
#[derive(Debug, PartialEq, Serialize)]
struct Busy {
    principal: String,
    client_id: String,
    connections: usize,
    requests_per_second: f64,
    received_bytes_per_second: f64,
    sent_bytes_per_second: f64,
}

/// The busiest clients, and the nodes that were not heard.
#[derive(Debug, Serialize)]
struct Shown {
    clients: Vec<Busy>,
    silent: Vec<Silent>,
}

impl Top {
    pub(super) async fn run(self, client: &Client, format: Format) -> Result<Exit, Failure> {
        let request = self.which.request();
        let (before, at) = (look::<ClientList>(client, &request).await?, clock::now());
        tokio::time::sleep(Duration::from_secs(self.interval)).await;
        let after = list(client, &self.which).await?;
        let took = clock::now().saturating_duration_since(at);
        let mut all = busy(&before.clients, &after.clients, took);
        sort(&mut all, self.by);
        all.truncate(self.count);
        let silent = render_silent(&after);
        let exit = after.exit();
        let shown = Shown { clients: all, silent: after.silent };
        output::print(format, &shown, |shown| render(&shown.clients) + &silent)?;
        Ok(exit)
    }
}

/// What each client has done between two looks. A connection that is new has done all of it meanwhile.
fn busy(before: &[Connected], after: &[Connected], took: Duration) -> Vec<Busy> {
    let by_id = before.iter().map(|it| (life(it), &it.connection));
    let by_id: BTreeMap<_, _> = by_id.collect();
    let mut all: BTreeMap<(&str, &str), (usize, [u64; 3])> = BTreeMap::new();
    for now in after {
        let then = by_id.get(&life(now));
        let now = &now.connection;
        let of = |it: &Connection| [it.requests, it.received_bytes, it.sent_bytes];
        let (now_of, then_of) = (of(now), then.map(|it| of(it)).unwrap_or_default());
        let (count, sums) = all.entry((&now.principal, &now.client_id)).or_default();
        *count += 1;
        for (sum, (now, then)) in sums.iter_mut().zip(now_of.into_iter().zip(then_of)) {
            *sum += now.saturating_sub(then);
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "three digits are shown")]
    let rate = |count: u64| count as f64 / took.as_secs_f64().max(f64::EPSILON);
    let mut busy = Vec::with_capacity(all.len());
    for ((principal, client_id), (connections, [requests, received, sent])) in all {
        busy.push(Busy {
            principal: principal.to_owned(),
            client_id: client_id.to_owned(),
            connections,
            requests_per_second: rate(requests),
            received_bytes_per_second: rate(received),
            sent_bytes_per_second: rate(sent),
        });
    }
    busy
}

/// What tells a connection from all others: its number is its node's, which begins anew when it starts.
fn life(it: &Connected) -> (u32, u64, i64) {
    (it.node, it.connection.connection, it.connection.since_ms)
}

fn sort(all: &mut [Busy], by: By) {
    let of = |it: &Busy| match by {
        By::Out => it.sent_bytes_per_second,
        By::In => it.received_bytes_per_second,
        By::Requests => it.requests_per_second,
    };
    all.sort_by(|a, b| of(b).total_cmp(&of(a)));
}

fn render(all: &[Busy]) -> String {
    let mut table =
        Table::new(&["PRINCIPAL", "CLIENT ID", "CONNECTIONS", "REQUESTS/S", "IN B/S", "OUT B/S"]);
    for it in all {
        table.row([
            it.principal.clone(),
            or_none(&it.client_id),
            it.connections.to_string(),
            format!("{:.1}", it.requests_per_second),
            format!("{:.0}", it.received_bytes_per_second),
            format!("{:.0}", it.sent_bytes_per_second),
        ]);
    }
    table.render()
}

#[cfg(test)]
mod tests {
    use super::super::connected;
    use super::*;

    #[test]
    fn connections_of_a_client_are_added_up_over_nodes() {
        let before = [connected(1, 1, "a", 100), connected(1, 2, "b", 900)];
        let new = connected(2, 1, "a", 40);
        let after = [connected(1, 1, "a", 200), connected(1, 2, "b", 910), new];
        let mut all = busy(&before, &after, Duration::from_secs(2));
        sort(&mut all, By::Out);
        let shown: Vec<_> = all
            .iter()
            .map(|it| (it.client_id.as_str(), it.connections, it.received_bytes_per_second))
            .collect();
        assert_eq!(shown, [("a", 2, 70.0), ("b", 1, 5.0)]);
        // A node that was started again counts its connections from 1.
        let mut other = connected(1, 1, "a", 30);
        other.connection.since_ms = 5;
        let all = busy(&before, &[other], Duration::from_secs(1));
        assert!((all[0].received_bytes_per_second - 30.0).abs() < 1e-9);
    }
}
