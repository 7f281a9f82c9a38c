//! How much the members of all groups of a node may make it hold: a bound on what clients choose,
//! however many groups and members they make.
//!
//! What somebody brings is added before it is kept, and what goes is noticed when all members are
//! counted again: the sum is never too small. It is counted again before anybody is refused, and
//! now and then.

use std::time::Duration;

use meridian_base::env::Instant;

/// What a member takes besides names, subscriptions and assignments: about.
pub const MEMBER_SIZE_BYTES: usize = 512;
/// What a partition takes in one of the sets and maps in which a group of KIP-848 names it: their nodes are half full.
pub(crate) const HELD_SIZE_BYTES: usize = 80;
/// All members are counted no more often than this, so that refused clients cost little.
const COUNT_EVERY_MIN: Duration = Duration::from_secs(1);
/// And no less often, while members come.
const COUNT_EVERY_MAX: Duration = Duration::from_secs(10);

/// What is to be done with somebody who brings something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// It is charged: take it.
    Taken,
    /// There seems to be no room. Count, then ask again.
    CountFirst,
    /// There is no room.
    Refused,
}

/// The memory of all members of a node's groups.
#[derive(Clone, Copy, Debug)]
pub struct MemberMemory {
    limit_bytes: usize,
    counted_bytes: usize,
    counted_at: Option<Instant>,
    /// All that was ever brought, and how much of that when the last count began.
    brought_bytes: usize,
    brought_before_bytes: usize,
}

impl MemberMemory {
    /// No members yet.
    pub fn new(limit_bytes: usize) -> Self {
        Self {
            limit_bytes,
            counted_bytes: 0,
            counted_at: None,
            brought_bytes: 0,
            brought_before_bytes: 0,
        }
    }

    /// The limit.
    pub fn limit_bytes(&self) -> usize {
        self.limit_bytes
    }

    /// What members take, at most.
    pub fn used_bytes(&self) -> usize {
        let since = self.brought_bytes.wrapping_sub(self.brought_before_bytes);
        self.counted_bytes.saturating_add(since)
    }

    /// Charges what somebody brings, if there is room.
    pub fn admit(&mut self, now: Instant, size_bytes: usize) -> Admission {
        if self.used_bytes().saturating_add(size_bytes) <= self.limit_bytes {
            self.brought_bytes = self.brought_bytes.wrapping_add(size_bytes);
            return Admission::Taken;
        }
        let is_due = self.counted_at.is_none_or(|at| now.since(at) >= COUNT_EVERY_MIN);
        if is_due { Admission::CountFirst } else { Admission::Refused }
    }

    /// Charges what members hold from now on, though nobody brought it: partitions that they were assigned.
    pub fn bring(&mut self, size_bytes: usize) {
        self.brought_bytes = self.brought_bytes.wrapping_add(size_bytes);
    }

    /// Whether members are to be counted, though nobody is to be refused.
    pub fn is_due(&self, now: Instant) -> bool {
        let is_changed = self.brought_bytes != self.brought_before_bytes || self.counted_bytes > 0;
        is_changed && self.counted_at.is_none_or(|at| now.since(at) >= COUNT_EVERY_MAX)
    }

    /// A count begins; gives what [`Self::on_counted`] is to be given with its sum.
    pub fn begin_count(&self) -> usize {
        self.brought_bytes
    }

    /// All members were counted.
    pub fn on_counted(&mut self, now: Instant, begun: usize, counted_bytes: usize) {
        self.counted_at = Some(now);
        self.counted_bytes = counted_bytes;
        self.brought_before_bytes = begun;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_micros(ms * 1000)
    }

    #[test]
    fn who_finds_no_room_is_refused_after_a_count() {
        let mut memory = MemberMemory::new(100);
        assert_eq!(memory.admit(at(0), 60), Admission::Taken);
        assert_eq!(memory.admit(at(0), 40), Admission::Taken);
        assert_eq!(memory.used_bytes(), 100);
        assert_eq!(memory.admit(at(0), 1), Admission::CountFirst);
        let begun = memory.begin_count();
        memory.on_counted(at(0), begun, 100);
        assert_eq!(memory.admit(at(0), 1), Admission::Refused);
        assert_eq!(memory.admit(at(999), 1), Admission::Refused, "not counted for each of them");
        assert_eq!(memory.admit(at(1_000), 1), Admission::CountFirst);
        // Somebody has left.
        memory.on_counted(at(1_000), memory.begin_count(), 40);
        assert_eq!(memory.admit(at(1_000), 60), Admission::Taken);
        assert_eq!(memory.admit(at(1_000), usize::MAX), Admission::Refused);
        memory.bring(1);
        assert_eq!(memory.used_bytes(), 101, "they have it, room or not");
    }

    #[test]
    fn who_comes_during_a_count_is_counted_twice_and_not_never() {
        let mut memory = MemberMemory::new(100);
        memory.admit(at(0), 10);
        let begun = memory.begin_count();
        memory.admit(at(0), 20);
        memory.on_counted(at(0), begun, 30);
        assert_eq!(memory.used_bytes(), 50);
        memory.on_counted(at(1), memory.begin_count(), 30);
        assert_eq!(memory.used_bytes(), 30);
    }

    #[test]
    fn members_are_counted_now_and_then() {
        let mut memory = MemberMemory::new(100);
        assert!(!memory.is_due(at(0)), "there are none");
        memory.admit(at(0), 10);
        assert!(memory.is_due(at(0)));
        memory.on_counted(at(0), memory.begin_count(), 10);
        assert!(!memory.is_due(at(9_999)));
        assert!(memory.is_due(at(10_000)), "one may have left");
        memory.on_counted(at(10_000), memory.begin_count(), 0);
        assert!(!memory.is_due(at(99_999)));
    }
}
