//! What access rules and users that follow a source have in common once it is known what must change.

use std::collections::BTreeMap;

use meridian_consensus::command::FeatureLevel;

use super::entries::{Item, put_all};
use super::notes::{REMOVED, SET};
use super::{LookError, Steward};
use crate::features::agree;

/// Things that are named among those left out; of more there is only the number.
pub(super) const LEFT_OUT_COUNT_MAX: usize = 50;

/// What follows, in words.
#[derive(Clone, Copy)]
pub(super) struct Followed {
    /// One of them.
    pub(super) one: &'static str,
    /// The subject of events about them.
    pub(super) event: &'static str,
    /// What is counted, in events, where their subject does not say it.
    pub(super) many: &'static str,
}

/// Things that do not follow, and why: the first ones by name.
#[derive(Debug, Default)]
pub(super) struct LeftOut {
    named: BTreeMap<String, String>,
    beyond_count: usize,
}

impl LeftOut {
    pub(super) fn add(&mut self, name: String, why: impl Into<String>) {
        if self.named.len() < LEFT_OUT_COUNT_MAX || self.named.contains_key(&name) {
            self.named.insert(name, why.into());
        } else {
            self.beyond_count += 1;
        }
    }

    pub(super) fn into_named(mut self) -> BTreeMap<String, String> {
        if self.beyond_count > 0 {
            self.named.insert(format!("{} more", self.beyond_count), "for such reasons".to_owned());
        }
        self.named
    }
}

impl Steward {
    /// Writes what must change, and says what was set and removed.
    pub(super) async fn follow_with(
        &self,
        followed: Followed,
        items: &[Item],
    ) -> Result<(), LookError> {
        if items.is_empty() {
            return Ok(());
        }
        let Followed { one, event, many } = followed;
        agree(&*self.node, FeatureLevel::RULES).await?;
        let (done, failure) = put_all(&*self.node, one, items).await;
        for Item { name, told, .. } in done.iter().filter(|it| !it.told.is_empty()) {
            tracing::info!(link = %self.link, %name, "the {one} is {told}, as at the source");
        }
        let count = |told: &str| done.iter().filter(|it| it.told == told).count();
        let (set, removed) = (count(SET), count(REMOVED));
        if set + removed > 0 {
            let what = format!("{set} {many}set and {removed} removed, as at the source");
            self.on_event(event, what);
        }
        failure.map_or(Ok(()), Err)
    }
}
