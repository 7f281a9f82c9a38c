//! A partition's log as the source of mirrors that may only be so far behind (`mirror.max.lag.ms`).

use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::id::ClusterId;
use meridian_base::position::Offset;
use meridian_mirror::contract::{Contract, Verdict};

use super::lock;
use super::partition_log::PartitionLog;

/// What the mirrors of a partition have told its leader.
#[derive(Clone, Debug)]
pub(crate) struct ContractView {
    /// How long the oldest record without a mirror has been here.
    pub(crate) lag: Duration,
    /// What becomes of a batch that comes now.
    pub(crate) verdict: Verdict,
    /// For each mirror: its cluster, where it ends, and how long ago it said so.
    pub(crate) mirrors: Vec<(ClusterId, Offset, Duration)>,
}

impl PartitionLog {
    /// Judges a batch that comes now; its age counts from here on if it is let in.
    pub(crate) fn judge_lag(&self, limit: Duration) -> Verdict {
        self.sight(limit, |contract, now| contract.judge(now, limit))
    }

    /// Takes note of what was just appended: nobody may ever ask again.
    pub(crate) fn sight_end(&self, limit: Duration) {
        self.sight(limit, |_, _| ());
    }

    /// What is known of the mirrors.
    pub(crate) fn contract_view(&self, limit: Duration) -> ContractView {
        self.sight(limit, |contract, now| ContractView {
            lag: contract.lag(now),
            verdict: contract.judge(now, limit),
            mirrors: contract
                .mirrors()
                .map(|(cluster, heard)| (cluster.clone(), heard.end, now.since(heard.at)))
                .collect(),
        })
    }

    /// A mirror says that it has all before `end`. Whatever it says, it has no more than there is.
    pub(crate) fn on_mirrored(&self, by: ClusterId, end: Offset) {
        let end = end.min(self.high_watermark());
        lock(&self.contract).on_mirrored(self.time(), by, end);
    }

    fn sight<T>(&self, limit: Duration, of: impl FnOnce(&Contract, Instant) -> T) -> T {
        let (now, end) = (self.time(), self.high_watermark());
        let mut contract = lock(&self.contract);
        contract.on_end(now, end, limit);
        of(&contract, now)
    }

    /// The node's time; a log that is left behind by its node judges nothing any more.
    pub(super) fn time(&self) -> Instant {
        self.logs().map_or(Instant::ZERO, |logs| logs.now())
    }
}
