//! Raft messages that no frame holds, which are snapshots: cut by who sends them, joined by who receives them. Parts go as
//! fast as the transport takes them; one that gets lost loses the message, and Raft sends another.

use std::collections::HashMap;
use std::time::Duration;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use meridian_base::env::Instant;
use meridian_base::id::NodeId;

/// Bytes of a message in one part.
const PART_SIZE_BYTES: usize = 4 << 20;
/// Most parts of a message: 4 GiB.
const PART_COUNT_MAX: u32 = 1 << 10;
const HEAD_SIZE_BYTES: usize = 8 + 4 + 4;
/// How long the transport may take nothing before a message is given up.
const GIVE_UP_AFTER: Duration = Duration::from_secs(10);

/// A part: the number of its message, its own number, how many there are, and its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    message: u64,
    number: u32,
    count: u32,
    bytes: Bytes,
}

impl Part {
    pub(super) fn size_bytes(&self) -> usize {
        self.bytes.len()
    }

    pub(super) fn encode(&self) -> Vec<Bytes> {
        let mut head = BytesMut::with_capacity(HEAD_SIZE_BYTES);
        head.put_u64(self.message);
        head.put_u32(self.number);
        head.put_u32(self.count);
        vec![head.freeze(), self.bytes.clone()]
    }

    pub(super) fn decode(mut body: Bytes) -> Option<Self> {
        if body.len() < HEAD_SIZE_BYTES {
            return None;
        }
        let (message, number, count) = (body.get_u64(), body.get_u32(), body.get_u32());
        let is_part = number < count && count <= PART_COUNT_MAX;
        is_part.then_some(Self { message, number, count, bytes: body })
    }
}

/// A message that is being sent.
pub(super) struct Outgoing<T> {
    /// Whom it is for.
    pub(super) to: T,
    message: u64,
    bytes: Bytes,
    part_size_bytes: usize,
    next: u32,
    went_at: Instant,
}

/// Whether a Raft message has room in a frame, whose first byte says what it is. It goes whole then, as nodes of before
/// know it.
pub(super) fn has_room(message: &[u8], frame_size_bytes_max: usize) -> bool {
    message.len() < frame_size_bytes_max
}

/// How far a message has got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sent {
    /// The transport takes no more for now.
    Partly,
    Whole,
    /// It has taken nothing for too long, or no message may be so long.
    Never,
}

impl<T> Outgoing<T> {
    pub(super) fn new(
        to: T,
        message: u64,
        bytes: Bytes,
        frame_size_bytes_max: usize,
        now: Instant,
    ) -> Self {
        let part_size_bytes = PART_SIZE_BYTES.min(frame_size_bytes_max / 2);
        Self { to, message, bytes, part_size_bytes, next: 0, went_at: now }
    }

    /// Sends what the transport takes now.
    pub(super) fn send(&mut self, now: Instant, mut send: impl FnMut(Part) -> bool) -> Sent {
        let size_bytes = self.part_size_bytes;
        let count = self.bytes.len().div_ceil(size_bytes);
        let Some(count) = u32::try_from(count).ok().filter(|count| *count <= PART_COUNT_MAX) else {
            return Sent::Never;
        };
        while self.next < count {
            let from = self.next as usize * size_bytes;
            let bytes = self.bytes.slice(from..self.bytes.len().min(from + size_bytes));
            let part = Part { message: self.message, number: self.next, count, bytes };
            if !send(part) {
                let is_late = now.since(self.went_at) >= GIVE_UP_AFTER;
                return if is_late { Sent::Never } else { Sent::Partly };
            }
            self.next += 1;
            self.went_at = now;
        }
        Sent::Whole
    }
}

/// Parts that have come, of one message from each node.
#[derive(Default)]
pub(super) struct Incoming(HashMap<NodeId, Joining>);

struct Joining {
    message: u64,
    count: u32,
    parts: Vec<Bytes>,
}

impl Incoming {
    /// Takes a part; gives the message if it was the last. Parts come in order, or the message is lost.
    pub(super) fn take(&mut self, from: NodeId, part: Part) -> Option<Bytes> {
        if part.number == 0 {
            let Part { message, count, .. } = part;
            self.0.insert(from, Joining { message, count, parts: Vec::new() });
        }
        let joining = self.0.get_mut(&from)?;
        let is_next = joining.message == part.message
            && joining.count == part.count
            && joining.parts.len() == part.number as usize;
        if !is_next {
            self.0.remove(&from);
            return None;
        }
        joining.parts.push(part.bytes);
        if joining.parts.len() < joining.count as usize {
            return None;
        }
        self.0.remove(&from).map(|joined| joined.parts.concat().into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FROM: NodeId = NodeId::new(3);
    const FRAME_SIZE_BYTES: usize = 1000;
    const PART_SIZE_BYTES: usize = 500;

    fn at(seconds: u64) -> Instant {
        Instant::from_micros(seconds * 1_000_000)
    }

    fn message(size_bytes: usize) -> Bytes {
        (0..size_bytes).map(|index| (index / 10) as u8).collect::<Vec<_>>().into()
    }

    fn received(part: &Part) -> Part {
        Part::decode(part.encode().concat().into()).expect("it was encoded just now")
    }

    #[test]
    fn a_message_goes_in_parts_as_the_transport_takes_them() {
        let bytes = message(2 * PART_SIZE_BYTES + 5);
        let mut outgoing = Outgoing::new((), 9, bytes.clone(), FRAME_SIZE_BYTES, at(0));
        let mut incoming = Incoming::default();
        let mut room = 1;
        let mut joined = None;
        let mut sent = Vec::new();
        for second in 0..3 {
            let send = |part: Part| {
                if room == 0 {
                    return false;
                }
                room -= 1;
                joined = incoming.take(FROM, received(&part));
                true
            };
            sent.push(outgoing.send(at(second), send));
            room = 1;
        }
        assert_eq!(sent, [Sent::Partly, Sent::Partly, Sent::Whole]);
        assert_eq!(joined, Some(bytes));
    }

    #[test]
    fn a_message_that_the_transport_does_not_take_is_given_up() {
        let bytes = message(PART_SIZE_BYTES + 1);
        let mut outgoing = Outgoing::new((), 9, bytes, FRAME_SIZE_BYTES, at(0));
        assert_eq!(outgoing.send(at(9), |_| false), Sent::Partly);
        assert_eq!(outgoing.send(at(10), |_| false), Sent::Never);
    }

    #[test]
    fn of_a_message_with_a_part_missing_nothing_comes() {
        let part = |message, number| Part { message, number, count: 3, bytes: Bytes::new() };
        let mut incoming = Incoming::default();
        assert_eq!(incoming.take(FROM, part(1, 0)), None);
        assert_eq!(incoming.take(FROM, part(1, 2)), None);
        assert_eq!(incoming.take(FROM, part(1, 1)), None);
        assert!(incoming.0.is_empty());
        // A part of another message ends it too.
        assert_eq!(incoming.take(FROM, part(1, 0)), None);
        assert_eq!(incoming.take(FROM, part(2, 1)), None);
        assert!((0..3).any(|number| incoming.take(FROM, part(2, number)).is_some()));
    }

    #[test]
    fn what_is_no_part_is_refused() {
        assert_eq!(Part::decode(Bytes::from_static(&[0; 15])), None);
        let beyond = Part { message: 1, number: 3, count: 3, bytes: Bytes::new() };
        assert_eq!(Part::decode(beyond.encode().concat().into()), None);
        let many = Part { message: 1, number: 3, count: u32::MAX, bytes: Bytes::new() };
        assert_eq!(Part::decode(many.encode().concat().into()), None);
    }
}
