//! The object store of a run: it is slow, refuses, does what it does not answer, and does it twice or late. What it
//! has once taken it keeps, as it was put, until that is deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use bytes::Bytes;
use meridian_base::id::PartitionId;
use meridian_base::position::LogPoint;
use meridian_jepsen_runner::chance::Chance;
use meridian_storage::cold::Listed;
use meridian_storage::manifest::Object;

/// How long a request takes to get there, on average.
const DELAY: Duration = Duration::from_millis(4);
/// How late one that is late may be: its leader may have given it up, and died, and been replaced.
const LATE_MAX: Duration = Duration::from_secs(9);

/// What a leader asks of the store, about its partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectRequest {
    /// Take this.
    Put(LogPoint, Bytes),
    /// Give it back.
    Get(LogPoint),
    /// What is there?
    List,
    /// Forget it.
    Delete(LogPoint),
    /// Which partitions is anything there of?
    Partitions,
}

/// What the store answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ObjectAnswer {
    /// It is stored, or gone.
    Done,
    /// An object.
    Bytes(Bytes),
    /// All objects of the partition.
    Listed(Vec<Listed>),
    /// The partitions that there is anything of.
    Partitions(BTreeSet<PartitionId>),
    /// No, or not known.
    Failed,
}

/// How badly the store behaves, in requests per thousand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trouble {
    /// Refused.
    pub(crate) refused: u32,
    /// Carried out, and answered as if they were not, or not at all.
    pub(crate) unknown: u32,
    /// Carried out twice, as who asks tries again.
    pub(crate) twice: u32,
    /// Late.
    pub(crate) late: u32,
}

impl Trouble {
    /// All is done and answered in time.
    pub(crate) const NONE: Self = Self { refused: 0, unknown: 0, twice: 0, late: 0 };
    /// As it is for most of the time.
    pub(crate) const LITTLE: Self = Self { refused: 20, unknown: 20, twice: 20, late: 10 };
}

/// What becomes of a request that arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It is carried out and answered.
    Done,
    /// It is carried out, and answered as if it had failed.
    DoneSilently,
    /// It is carried out, and never answered.
    Unanswered,
    /// It is not carried out.
    Refused,
}

/// The store.
#[derive(Debug)]
pub(crate) struct SimObjects {
    chance: Chance,
    trouble: Trouble,
    objects: BTreeMap<(PartitionId, LogPoint), Bytes>,
}

impl SimObjects {
    /// An empty one.
    pub(crate) fn new(chance: Chance) -> Self {
        Self { chance, trouble: Trouble::LITTLE, objects: BTreeMap::new() }
    }

    /// How badly it behaves from now on.
    pub(crate) fn set_trouble(&mut self, trouble: Trouble) {
        self.trouble = trouble;
    }

    /// When a request arrives, and what becomes of it then.
    pub(crate) fn send(&mut self) -> Vec<(Duration, Fate)> {
        let Trouble { refused, unknown, twice, late } = self.trouble;
        if self.chance.per_mille(refused) {
            return vec![(self.delay(late), Fate::Refused)];
        }
        let fate = match self.chance.per_mille(unknown) {
            true if self.chance.per_mille(500) => Fate::DoneSilently,
            true => Fate::Unanswered,
            false => Fate::Done,
        };
        let again = self.chance.per_mille(twice).then_some(Fate::Unanswered);
        [Some(fate), again].into_iter().flatten().map(|fate| (self.delay(late), fate)).collect()
    }

    /// How long an answer takes.
    pub(crate) fn delay(&mut self, late: u32) -> Duration {
        let lateness = if self.chance.per_mille(late) { LATE_MAX } else { Duration::ZERO };
        self.chance.around(DELAY) + self.chance.between(Duration::ZERO, lateness)
    }

    /// Carries a request out.
    pub(crate) fn carry_out(
        &mut self,
        partition: PartitionId,
        request: &ObjectRequest,
    ) -> ObjectAnswer {
        match request {
            ObjectRequest::Put(point, bytes) => {
                self.objects.insert((partition, *point), bytes.clone());
                ObjectAnswer::Done
            }
            ObjectRequest::Get(point) => {
                let found = self.objects.get(&(partition, *point)).cloned();
                found.map_or(ObjectAnswer::Failed, ObjectAnswer::Bytes)
            }
            ObjectRequest::List => {
                let of_partition = self.objects.iter().filter(|((of, _), _)| *of == partition);
                let listed = |((_, point), bytes): (&(_, LogPoint), &Bytes)| Listed {
                    point: *point,
                    size_bytes: bytes.len() as u64,
                };
                ObjectAnswer::Listed(of_partition.map(listed).collect())
            }
            ObjectRequest::Delete(point) => {
                self.objects.remove(&(partition, *point));
                ObjectAnswer::Done
            }
            ObjectRequest::Partitions => ObjectAnswer::Partitions(self.partitions()),
        }
    }

    /// The partitions that there is anything of.
    pub(crate) fn partitions(&self) -> BTreeSet<PartitionId> {
        self.objects.keys().map(|(partition, _)| *partition).collect()
    }

    /// What there is of a partition.
    pub(crate) fn of(&self, partition: PartitionId) -> BTreeMap<LogPoint, Object> {
        let of_partition = self.objects.iter().filter(|((of, _), _)| *of == partition);
        of_partition.map(|((_, point), bytes)| (*point, Object::of(*point, bytes))).collect()
    }
}

#[cfg(test)]
mod tests {
    use meridian_base::position::{Generation, Step};

    use super::*;

    const PARTITION: PartitionId = PartitionId::new(1);

    fn store() -> SimObjects {
        SimObjects::new(Chance::new(5))
    }

    #[test]
    fn what_is_put_is_there_until_it_is_deleted() {
        let (mut store, point) = (store(), LogPoint::new(Generation::FIRST, Step::new(3)));
        let bytes = Bytes::from_static(b"hello");
        store.carry_out(PARTITION, &ObjectRequest::Put(point, bytes.clone()));
        let got = store.carry_out(PARTITION, &ObjectRequest::Get(point));
        assert_eq!(got, ObjectAnswer::Bytes(bytes.clone()));
        let listed = store.carry_out(PARTITION, &ObjectRequest::List);
        assert_eq!(listed, ObjectAnswer::Listed(vec![Listed { point, size_bytes: 5 }]));
        assert_eq!(store.of(PARTITION), [(point, Object::of(point, &bytes))].into());
        let other = store.carry_out(PartitionId::new(2), &ObjectRequest::Get(point));
        assert_eq!(other, ObjectAnswer::Failed);
        store.carry_out(PARTITION, &ObjectRequest::Delete(point));
        assert!(store.partitions().is_empty());
    }

    #[test]
    fn requests_meet_every_fate() {
        let mut store = store();
        store.set_trouble(Trouble { refused: 200, unknown: 400, twice: 200, late: 200 });
        let sent: Vec<Vec<(Duration, Fate)>> = (0..300).map(|_| store.send()).collect();
        for fate in [Fate::Done, Fate::DoneSilently, Fate::Unanswered, Fate::Refused] {
            assert!(sent.iter().any(|arrivals| arrivals[0].1 == fate), "{fate:?}");
        }
        assert!(sent.iter().any(|arrivals| arrivals.len() == 2));
        assert!(sent.iter().flatten().any(|(delay, _)| *delay > Duration::from_secs(4)));
        store.set_trouble(Trouble::NONE);
        assert!((0..300).all(|_| store.send().iter().all(|(_, fate)| *fate == Fate::Done)));
    }
}
