//! One kind of memory: who holds how much, who waits for some, and who gives way. Pure.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use meridian_base::env::Instant;

/// How often somebody gives way.
pub(super) const LOOK_EVERY: Duration = Duration::from_millis(50);
/// Connections that all hold some and wait for more do so for this long, at most.
const STUCK_AFTER: Duration = Duration::from_millis(500);
/// The share of the account that is made free at a time, if there are holders that can give way.
const FREED_SHARE: usize = 8;

/// A connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct HolderId(pub(super) u64);

/// See the module. What is held may be more than the limit, by what was added without asking.
#[derive(Debug)]
pub(super) struct Account {
    limit_bytes: usize,
    used_bytes: usize,
    held_bytes: HashMap<HolderId, usize>,
    waiting: VecDeque<Waiting>,
    looked_at: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    id: HolderId,
    bytes: usize,
    since: Instant,
}

impl Account {
    pub(super) fn new(limit_bytes: usize) -> Self {
        let (held_bytes, waiting) = Default::default();
        Self { limit_bytes, used_bytes: 0, held_bytes, waiting, looked_at: None }
    }

    pub(super) fn used_bytes(&self) -> usize {
        self.used_bytes
    }

    pub(super) fn limit_bytes(&self) -> usize {
        self.limit_bytes
    }

    /// Gives `bytes` at once, or puts the holder in the queue: it is among those that
    /// [`Account::give_back`] names when it has them.
    pub(super) fn take(&mut self, now: Instant, id: HolderId, bytes: usize) -> bool {
        let taken = self.try_take(id, bytes);
        if !taken {
            self.waiting.push_back(Waiting { id, bytes, since: now });
        }
        taken
    }

    /// Gives `bytes` if there are so many, and nobody waits for them.
    pub(super) fn try_take(&mut self, id: HolderId, bytes: usize) -> bool {
        let is_free = self.waiting.is_empty() && self.has_room(bytes);
        if is_free {
            self.add(id, bytes);
        }
        is_free
    }

    /// Gives `bytes` whether there are any or not: for what is there already.
    pub(super) fn add(&mut self, id: HolderId, bytes: usize) {
        *self.held_bytes.entry(id).or_default() += bytes;
        self.used_bytes += bytes;
    }

    /// Takes `bytes` back; names those that waited and have what they waited for.
    pub(super) fn give_back(&mut self, id: HolderId, bytes: usize) -> Vec<HolderId> {
        if let Some(held_bytes) = self.held_bytes.get_mut(&id) {
            let bytes = bytes.min(*held_bytes);
            *held_bytes -= bytes;
            self.used_bytes -= bytes;
            if *held_bytes == 0 {
                self.held_bytes.remove(&id);
            }
        }
        self.serve()
    }

    /// Forgets a holder with all that it holds and waits for.
    pub(super) fn remove(&mut self, id: HolderId) -> Vec<HolderId> {
        self.used_bytes -= self.held_bytes.remove(&id).unwrap_or_default();
        self.waiting.retain(|waiting| waiting.id != id);
        self.serve()
    }

    /// While somebody waits: those that have to give way, of the holders that are late. The largest first,
    /// until there is room for a while. If nobody is late, but all that hold some wait for more: one of them.
    pub(super) fn who_gives_way(
        &mut self,
        now: Instant,
        is_late: impl Fn(HolderId) -> bool,
    ) -> Vec<HolderId> {
        let is_due = self.looked_at.is_none_or(|at| now.since(at) >= LOOK_EVERY);
        let Some(front) = self.waiting.front().copied().filter(|_| is_due) else {
            return Vec::new();
        };
        self.looked_at = Some(now);
        let needed_bytes = front.bytes.max(self.limit_bytes / FREED_SHARE);
        let late = self.held_bytes.iter().filter(|(id, _)| is_late(**id));
        let mut late: Vec<(usize, HolderId)> = late.map(|(id, bytes)| (*bytes, *id)).collect();
        if late.is_empty() {
            let is_stuck = now.since(front.since) >= STUCK_AFTER && self.all_wait();
            let largest = self.held_bytes.iter().map(|(id, bytes)| (*bytes, *id)).max();
            return largest.filter(|_| is_stuck).map(|(_, id)| id).into_iter().collect();
        }
        late.sort_unstable_by(|one, other| other.cmp(one));
        let mut freed_bytes = 0;
        let enough = late.iter().take_while(|(bytes, _)| {
            let is_needed = freed_bytes < needed_bytes;
            freed_bytes += bytes;
            is_needed
        });
        enough.map(|(_, id)| *id).collect()
    }

    /// Whether nobody who holds some can give it back before getting more.
    fn all_wait(&self) -> bool {
        let waiting: HashSet<HolderId> = self.waiting.iter().map(|waiting| waiting.id).collect();
        self.held_bytes.keys().all(|id| waiting.contains(id))
    }

    /// A request that is larger than all there is has its turn when nothing else is held.
    fn has_room(&self, bytes: usize) -> bool {
        self.used_bytes + bytes <= self.limit_bytes || self.used_bytes == 0
    }

    fn serve(&mut self) -> Vec<HolderId> {
        let mut served = Vec::new();
        while let Some(Waiting { id, bytes, .. }) = self.waiting.front().copied()
            && self.has_room(bytes)
        {
            self.waiting.pop_front();
            self.add(id, bytes);
            served.push(id);
        }
        served
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ONE: HolderId = HolderId(1);
    const TWO: HolderId = HolderId(2);
    const THREE: HolderId = HolderId(3);

    #[test]
    fn who_waits_is_served_in_order_as_soon_as_there_is_room() {
        let mut account = Account::new(100);
        assert!(account.take(Instant::ZERO, ONE, 60));
        assert!(!account.take(Instant::ZERO, TWO, 50));
        assert!(
            !account.take(Instant::ZERO, THREE, 10),
            "there would be room, but another was first"
        );
        assert_eq!(account.give_back(ONE, 5), []);
        assert_eq!(account.give_back(ONE, 5), [TWO]);
        assert_eq!(account.remove(TWO), [THREE]);
        assert_eq!(account.used_bytes(), 60);
    }

    #[test]
    fn what_is_larger_than_all_there_is_has_its_turn() {
        let mut account = Account::new(100);
        assert!(account.take(Instant::ZERO, ONE, 1));
        assert!(!account.take(Instant::ZERO, TWO, 1000));
        assert_eq!(account.remove(ONE), [TWO]);
    }

    #[test]
    fn the_largest_that_is_late_gives_way_and_only_while_somebody_waits() {
        let mut account = Account::new(100);
        let now = Instant::ZERO;
        for (id, bytes) in [(ONE, 20), (TWO, 30), (THREE, 50)] {
            assert!(account.take(Instant::ZERO, id, bytes));
        }
        let late = |id| id != THREE;
        assert_eq!(account.who_gives_way(now, late), [], "nobody waits");
        assert!(!account.take(Instant::ZERO, HolderId(4), 1));
        assert_eq!(account.who_gives_way(now, |_| false), []);
        assert_eq!(account.who_gives_way(now, late), [], "a moment ago somebody looked");
        assert_eq!(account.who_gives_way(now + LOOK_EVERY, late), [TWO]);
        assert_eq!(account.remove(TWO), [HolderId(4)]);
    }

    #[test]
    fn of_those_that_all_wait_for_more_one_gives_way() {
        let mut account = Account::new(100);
        let now = Instant::ZERO;
        assert!(account.take(now, ONE, 40) && account.take(now, TWO, 60));
        assert!(!account.take(now, ONE, 40));
        let later = now + STUCK_AFTER;
        assert_eq!(account.who_gives_way(later, |_| false), [], "the other may be done soon");
        assert!(!account.take(later, TWO, 40));
        assert_eq!(account.who_gives_way(later + LOOK_EVERY, |_| false), [TWO]);
        assert_eq!(account.remove(TWO), [ONE]);
    }

    proptest! {
        #[test]
        fn what_is_held_is_what_was_given(
            steps in prop::collection::vec((0u64..5, 0usize..60, 0u8..4), 0..200),
        ) {
            let mut account = Account::new(100);
            for (id, bytes, step) in steps {
                let id = HolderId(id);
                let served = match step {
                    0 => { account.take(Instant::ZERO, id, bytes); Vec::new() }
                    1 => { account.add(id, bytes); Vec::new() }
                    2 => account.give_back(id, bytes),
                    _ => account.remove(id),
                };
                prop_assert!(served.len() <= 200);
                let sum: usize = account.held_bytes.values().sum();
                prop_assert_eq!(sum, account.used_bytes());
            }
            for id in 0..5 {
                account.remove(HolderId(id));
            }
            prop_assert_eq!(account.used_bytes(), 0);
            prop_assert!(account.waiting.is_empty());
        }
    }
}
