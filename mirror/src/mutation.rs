//! Broken variants of the rules, one at a time, so that tests prove the model catches each.
//!
//! Without the `mutations` feature, [`Mutation::active`] is always false and costs nothing.

/// A rule to break.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mutation {
    /// A gap that the source does not explain is skipped.
    SkipGap,
    /// What is in the log already is appended again after a reconnect.
    AppendAgain,
    /// Batches get the next free offset instead of their own.
    Renumber,
    /// The lineage is not compared before the first fetch.
    IgnoreLineage,
    /// The last own batch is not compared with the source's.
    IgnoreOverlap,
    /// A topic that was recreated under the same name is taken for the old one.
    IgnoreIdentity,
    /// An answer to an earlier question is taken for the answer to the last.
    IgnoreToken,
    /// An answer that goes on where another ended is taken though that one never came.
    SkipAnswer,
    /// What the source has not committed is mirrored too.
    BeyondHighWatermark,
    /// Who says once that the source has lost records is believed.
    BelieveAtOnce,
    /// A mirror stays at offset 0 while its source has let go of all it had.
    StayBeforeStart,
    /// What is open here is not looked for at a compacted source.
    OpenUnverified,
    /// A hole that may have been a tombstone is taken for any other.
    MissTombstones,
    /// A switchover does not fence the source.
    SkipFence,
    /// A switchover does not wait until the mirror has all.
    SkipDrain,
    /// A switchover is rolled back after it was decided.
    RollBackDecided,
    /// A late answer to an earlier step is taken for one to the step that is under way.
    TakeAnyAnswer,
    /// A source takes a fence whose attempt is over.
    IgnoreAttempt,
    /// The side that was promoted later gives way as well.
    IgnoreLinkEpoch,
    /// What only the old side has is exported while records may still be appended to it.
    ExportUnfenced,
    /// The old side is deleted whatever was exported.
    ReplaceUnexported,
    /// The first record that only the old side has is not exported.
    DivergeLate,
    /// A mirror takes from the old side's log a record that only that one had.
    SeedBeyond,
    /// A lease runs from when its grant came, not from the writer's own stamp.
    CountFromReceipt,
    /// A stamp of another life of the writer is taken for one of this.
    TrustOtherLife,
    /// A grant is given by a node that has not read the metadata lately.
    GrantUnread,
    /// A grant is given although the metadata says that the mirror is being promoted.
    GrantPromoted,
    /// A grant is given while another mirror of the same source topic is being promoted.
    GrantBesidePromoted,
    /// A need is told while leaders that know nothing of it may take records still.
    TellUnfenced,
    /// A need is told as soon as the metadata has new generations, which may not have fenced anybody off yet.
    TellUnheard,
    /// A mirror is promoted although its source may need the lease of another cluster.
    PromoteUnnamed,
    /// A promotion gives its partitions no new generations, and has whoever leads them abort what is open.
    PromoteUnfenced,
    /// A promotion does not wait for leases to end.
    PromoteAtOnce,
    /// A promotion waits as if all clocks ran alike.
    IgnoreClockRate,
}

impl Mutation {
    /// Those of one mirrored partition, in a fixed order.
    pub const ALL: [Self; 11] = [
        Self::SkipGap,
        Self::AppendAgain,
        Self::Renumber,
        Self::IgnoreLineage,
        Self::IgnoreOverlap,
        Self::IgnoreIdentity,
        Self::IgnoreToken,
        Self::SkipAnswer,
        Self::BeyondHighWatermark,
        Self::BelieveAtOnce,
        Self::StayBeforeStart,
    ];

    /// Those of a switchover.
    pub const SWITCHOVER: [Self; 5] = [
        Self::SkipFence,
        Self::SkipDrain,
        Self::RollBackDecided,
        Self::TakeAnyAnswer,
        Self::IgnoreAttempt,
    ];

    /// Those of a rejoin.
    pub const REJOIN: [Self; 5] = [
        Self::IgnoreLinkEpoch,
        Self::ExportUnfenced,
        Self::ReplaceUnexported,
        Self::DivergeLate,
        Self::SeedBeyond,
    ];

    /// Those of the writer's lease.
    pub const LEASE: [Self; 10] = [
        Self::CountFromReceipt,
        Self::TrustOtherLife,
        Self::GrantUnread,
        Self::GrantPromoted,
        Self::GrantBesidePromoted,
        Self::TellUnfenced,
        Self::TellUnheard,
        Self::PromoteUnnamed,
        Self::PromoteAtOnce,
        Self::IgnoreClockRate,
    ];

    /// Whether this rule is broken.
    pub(crate) fn active(self, mutation: Option<Self>) -> bool {
        cfg!(feature = "mutations") && mutation == Some(self)
    }
}
