//! What clients have sent, as it went over the wire: for the nemesis that sends it again.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Mutex, PoisonError};

use meridian_protocol::ApiKey;

use crate::chance::Chance;

/// Minutes of a run; what is older is forgotten.
const FRAME_COUNT_MAX: usize = 20_000;

/// A request, with its size in front, and who got it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) to: SocketAddr,
    pub(crate) bytes: Vec<u8>,
}

/// The requests of one cluster's clients.
#[derive(Debug, Default)]
pub(crate) struct Tape {
    frames: Mutex<VecDeque<Frame>>,
}

/// Whether Kafka's protocol promises that a request which comes again, however late, changes nothing.
/// A commit of a group's positions has no number by which to tell that it is late; to begin anew
/// with a transactional id fences whoever has it, each time.
pub(crate) fn is_safe_to_repeat(api: ApiKey) -> bool {
    matches!(api, ApiKey::Produce | ApiKey::EndTxn | ApiKey::TxnOffsetCommit)
}

impl Tape {
    pub(crate) fn record(&self, frame: Frame) {
        let mut frames = self.frames.lock().unwrap_or_else(PoisonError::into_inner);
        if frames.len() == FRAME_COUNT_MAX {
            frames.pop_front();
        }
        frames.push_back(frame);
    }

    /// Some of what was sent, of any age, in no order; a frame may be there twice.
    pub(crate) fn some(&self, count: usize, chance: &mut Chance) -> Vec<Frame> {
        let frames = self.frames.lock().unwrap_or_else(PoisonError::into_inner);
        (0..count).filter_map(|_| frames.get(chance.below(frames.len())).cloned()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(number: usize) -> Frame {
        let bytes = number.to_be_bytes().to_vec();
        Frame { to: ([127, 0, 0, 1], 9092).into(), bytes }
    }

    #[test]
    fn what_was_sent_comes_back_until_it_is_too_old() {
        let (tape, mut chance) = (Tape::default(), Chance::new(1));
        assert_eq!(tape.some(3, &mut chance), []);
        tape.record(frame(0));
        assert_eq!(tape.some(2, &mut chance), [frame(0), frame(0)]);
        (1..=FRAME_COUNT_MAX).for_each(|number| tape.record(frame(number)));
        assert!(!tape.some(100_000, &mut chance).contains(&frame(0)));
    }
}
