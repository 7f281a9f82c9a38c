//! The object store of the world: requests on their way to it, and answers.

use meridian_base::id::PartitionId;
use meridian_base::position::Generation;

use super::{Event, World};
use crate::check::Verdict;
use crate::objects::{Fate, ObjectAnswer, ObjectRequest};
use crate::topics::Class;

/// A request on its way. It arrives even if who sent it dies.
#[derive(Clone, Debug)]
pub(crate) struct Arriving {
    node: usize,
    boot: u64,
    leader: (PartitionId, Generation),
    number: u64,
    request: ObjectRequest,
    fate: Fate,
}

/// An answer on its way.
#[derive(Debug)]
pub(crate) struct Answered {
    pub(super) node: usize,
    boot: u64,
    leader: (PartitionId, Generation),
    number: u64,
    answer: ObjectAnswer,
}

impl World {
    /// Whether there is an object store.
    pub(crate) fn has_object_store(&self) -> bool {
        self.classes.contains(&Class::Objects)
    }

    pub(super) fn ask_objects(
        &mut self,
        node: usize,
        leader: (PartitionId, Generation),
        number: u64,
        request: ObjectRequest,
    ) {
        let boot = self.nodes[node].boot;
        for (delay, fate) in self.objects.send() {
            let request = request.clone();
            let arriving = Arriving { node, boot, leader, number, request, fate };
            self.schedule(delay, Event::ObjectArrives(Box::new(arriving)));
        }
    }

    pub(super) fn object_arrives(&mut self, arriving: &Arriving) {
        let Arriving { node, boot, leader, number, ref request, fate } = *arriving;
        let (partition, generation) = leader;
        let words = match request {
            ObjectRequest::Put(point, _) => format!("put {point}"),
            request => format!("{request:?}"),
        };
        self.trace.event(
            self.now,
            format_args!("N{node} {partition:?} {generation} object store: {words} {fate:?}"),
        );
        let answer = match fate {
            Fate::Refused => ObjectAnswer::Failed,
            Fate::Done | Fate::DoneSilently | Fate::Unanswered => {
                self.counters.object_count += u64::from(matches!(request, ObjectRequest::Put(..)));
                self.objects.carry_out(partition, request)
            }
        };
        let answer = match fate {
            Fate::Unanswered => return,
            Fate::DoneSilently => ObjectAnswer::Failed,
            Fate::Refused | Fate::Done => answer,
        };
        let delay = self.objects.delay(0);
        let answered = Answered { node, boot, leader, number, answer };
        self.schedule(delay, Event::ObjectAnswered(Box::new(answered)));
    }

    pub(super) fn object_answered(&mut self, answered: Answered) -> Verdict {
        let Answered { node, boot, leader, number, answer } = answered;
        if !self.nodes[node].is_up() || self.nodes[node].boot != boot {
            return Ok(());
        }
        self.with_node(node, |node, now, out| {
            node.on_object_answer(now, leader, (number, answer), out);
        })
    }

    /// Where the object store and what leaders name are not the same; `None` if they are.
    pub(super) fn unsettled_objects(&self) -> Option<String> {
        if !self.has_object_store() {
            return None;
        }
        self.convertible().into_iter().find_map(|partition| {
            let Some(owner) = self.owner(partition) else {
                return Some(format!("{partition:?} has no leader"));
            };
            let broker = self.nodes[owner.node.get() as usize].broker(partition, owner.generation);
            let Some(named) = broker.and_then(|broker| broker.objects_in_use()) else {
                return Some(format!("{partition:?} is not served"));
            };
            let there = self.objects.of(partition);
            let missing: Vec<_> =
                named.values().filter(|it| there.get(&it.point) != Some(*it)).collect();
            let unnamed: Vec<_> =
                there.keys().filter(|point| !named.contains_key(*point)).collect();
            let is_settled = missing.is_empty() && unnamed.is_empty();
            (!is_settled).then(|| {
                format!(
                    "{partition:?}: named and missing {missing:?}, there and not named {unnamed:?}"
                )
            })
        })
    }

    /// Whoever leads the metadata deletes what partitions that are no more have left, as far as it knows of them.
    pub(super) fn sweep_objects(&mut self) {
        let nodes: Vec<usize> =
            (0..self.nodes.len()).filter(|node| self.reaches_majority(*node)).collect();
        let Some(node) = self.chance.pick(&nodes).filter(|node| self.is_running(*node)) else {
            return;
        };
        for partition in self.objects.partitions() {
            if !self.nodes[node].knows_deleted(partition) {
                continue;
            }
            for point in self.objects.of(partition).into_keys() {
                let request = ObjectRequest::Delete(point);
                self.ask_objects(node, (partition, Generation::NONE), 0, request);
            }
        }
    }
}
