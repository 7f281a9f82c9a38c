//! `meridian mirror groups`: positions of consumer groups that are carried over links.

use std::collections::BTreeMap;

use clap::Args;
use meridian_admin_api::methods::MirrorStewards;
use meridian_admin_api::mirror::{CarriedPosition, StewardReport};
use serde::Serialize;

use crate::client::{Client, api};
use crate::failure::{Exit, Failure};
use crate::output::{self, Format, Table, or_none};

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

/// The positions that are carried over a link.
#[derive(Debug, Serialize)]
struct OfLink {
    link: String,
    failure: Option<String>,
    groups: Vec<CarriedPosition>,
}

impl Groups {
    pub(super) async fn run(self, client: &Client, format: Format) -> Result<Exit, Failure> {
        let mut links = Vec::new();
        for steward in stewards(client).await? {
            if self.link.as_ref().is_some_and(|link| steward.link != *link) {
                continue;
            }
            let mut groups = steward.groups;
            groups.retain(|it| self.group.as_ref().is_none_or(|id| it.group == *id));
            links.push(OfLink { link: steward.link, failure: steward.groups_failure, groups });
        }
        let is_well = links.iter().all(|link| link.failure.is_none());
        output::print(format, &links, |links| render(links))?;
        Ok(if is_well { Exit::Ok } else { Exit::Degraded })
    }
}

fn render(links: &[OfLink]) -> String {
    let mut table =
        Table::new(&["LINK", "GROUP", "TOPIC", "PARTITION", "AT SOURCE", "HERE", "STATE"]);
    let mut notes = String::new();
    for OfLink { link, failure, groups } in links {
        for it in groups {
            table.row([
                link.clone(),
                it.group.clone(),
                it.topic.clone(),
                it.partition.to_string(),
                it.source_offset.to_string(),
                or_none(it.offset),
                it.state.to_string(),
            ]);
        }
        if let Some(failure) = failure {
            notes.push_str(&format!("{link}: {failure}\n"));
        }
    }
    format!("{}{notes}", table.render())
}

/// What each link's steward says, wherever it is. A node that is down says nothing.
pub(crate) async fn stewards(client: &Client) -> Result<Vec<StewardReport>, Failure> {
    api::call_all::<MirrorStewards, _>(client).await
}

/// For each link, how many positions are in which state: `carried 12, active-here 3`.
pub(super) fn summary(stewards: &[StewardReport]) -> Vec<(String, String)> {
    let mut lines = Vec::new();
    for steward in stewards {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for position in &steward.groups {
            *counts.entry(position.state.as_str()).or_default() += 1;
        }
        let counts: Vec<String> =
            counts.into_iter().map(|(state, count)| format!("{state} {count}")).collect();
        if !counts.is_empty() {
            lines.push((steward.link.clone(), counts.join(", ")));
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use meridian_admin_api::Besides;
    use meridian_admin_api::mirror::Carried;

    use super::*;

    #[test]
    fn positions_are_counted_by_state() {
        let of = |state| CarriedPosition {
            group: "g".to_owned(),
            topic: "t".to_owned(),
            partition: 0,
            source_offset: 5,
            offset: None,
            state,
            besides: Besides::new(),
        };
        let groups = vec![of(Carried::Carried), of(Carried::ActiveHere), of(Carried::Carried)];
        let steward = |link: &str, groups| StewardReport {
            link: link.to_owned(),
            groups,
            ..StewardReport::default()
        };
        let stewards = [steward("west", groups.clone()), steward("east", Vec::new())];
        let expected = [("west".to_owned(), "active-here 1, carried 2".to_owned())];
        assert_eq!(summary(&stewards), expected);
        let failure = Some("no way".to_owned());
        let shown = render(&[OfLink { link: "west".to_owned(), failure, groups }]);
        assert!(shown.contains("active-here") && shown.ends_with("west: no way\n"));
    }
}
