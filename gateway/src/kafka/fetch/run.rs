//! Runs of fetches: a link on a long way asks for the next records before it has those that come before them, so
//! that what is new finds a fetch waiting for it, and a lost packet is soon followed by others that show its loss.
//! Where the next one goes on is where the answer before it ended, which only this side knows in time.

use std::collections::HashMap;

use meridian_base::position::Offset;
use meridian_protocol::messages::{FetchPartition, RUN_BEGINS, RUN_GOES_ON};

use super::read::Answer;
use super::session::Target;
use crate::kafka::lookup::TopicKey;

/// Partitions whose runs a connection remembers. Of others it is not said from where they were read, which has
/// links ask again as Kafka's consumers do.
const RUN_COUNT_MAX: usize = 10_000;

/// What a fetch of a partition is to those before and after it on its connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Run {
    /// It stands alone.
    No,
    Begins,
    GoesOn,
}

impl Run {
    pub(super) fn of(partition: &FetchPartition) -> Self {
        match partition.run {
            RUN_BEGINS => Self::Begins,
            RUN_GOES_ON => Self::GoesOn,
            _ => Self::No,
        }
    }
}

/// Where the runs of one connection go on.
#[derive(Debug, Default)]
pub(in crate::kafka) struct Runs {
    ends: HashMap<(TopicKey, i32), Offset>,
}

impl Runs {
    /// Has targets that go on do so from where the answers before ended; gives whether there are any.
    pub(super) fn go_on(&self, targets: &mut [Target]) -> bool {
        let mut any = false;
        for target in targets.iter_mut().filter(|target| target.run == Run::GoesOn) {
            any = true;
            if let Some(end) = self.ends.get(&key(target)) {
                target.offset = *end;
            }
        }
        any
    }

    /// Remembers where answers end, and has them say where they begin.
    pub(super) fn remember(&mut self, targets: &[Target], answers: &mut [Answer]) {
        for (target, answer) in targets.iter().zip(answers) {
            if target.run == Run::No {
                continue;
            }
            let key = key(target);
            if !answer.response.error_code.is_none() {
                self.ends.remove(&key);
            } else if self.ends.len() < RUN_COUNT_MAX || self.ends.contains_key(&key) {
                self.ends
                    .insert((key.0.to_owned(), key.1), answer.end_offset.unwrap_or(target.offset));
                answer.response.read_from = target.offset.get();
            }
        }
    }
}

fn key(target: &Target) -> (TopicKey, i32) {
    (target.topic.clone(), target.index)
}
