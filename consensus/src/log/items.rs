//! The items of a journal frame, and what replaying them gives. Tags are persisted: never reuse.

use std::collections::VecDeque;

use protobuf::Message as _;
use raft::eraftpb::{Entry, HardState, Snapshot};

use super::journal::SegmentNumber;
use crate::membership::RaftId;

const TAG_IDENTITY: u8 = 1;
const TAG_RESET: u8 = 2;
const TAG_ENTRY: u8 = 3;
const TAG_COMPACTED: u8 = 4;
const TAG_HARD_STATE: u8 = 5;

/// No log comes to here: an index above is damage, and would overflow what counts on from it.
const INDEX_MAX: u64 = u64::MAX >> 1;

/// An index and the term of the entry there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LogPosition {
    pub(super) index: u64,
    pub(super) term: u64,
}

impl LogPosition {
    pub(super) fn of(snapshot: &Snapshot) -> Self {
        let metadata = snapshot.get_metadata();
        Self { index: metadata.index, term: metadata.term }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Item {
    Identity(RaftId),
    Reset(LogPosition),
    Entry(Entry),
    Compacted(LogPosition),
    HardState(HardState),
}

/// Appends one item: tag, size, body.
pub(super) fn push(payload: &mut Vec<u8>, item: &Item) {
    match item {
        Item::Identity(raft_id) => push_words(payload, TAG_IDENTITY, &[raft_id.to_raft()]),
        Item::Reset(at) => push_words(payload, TAG_RESET, &[at.index, at.term]),
        Item::Entry(entry) => push_entry(payload, entry),
        Item::Compacted(at) => push_words(payload, TAG_COMPACTED, &[at.index, at.term]),
        Item::HardState(state) => {
            push_words(payload, TAG_HARD_STATE, &[state.term, state.vote, state.commit]);
        }
    }
}

pub(super) fn push_entry(payload: &mut Vec<u8>, entry: &Entry) {
    let body = entry.write_to_bytes().expect("an entry always encodes into memory");
    push_body(payload, TAG_ENTRY, &body);
}

fn push_words(payload: &mut Vec<u8>, tag: u8, words: &[u64]) {
    let body: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    push_body(payload, tag, &body);
}

fn push_body(payload: &mut Vec<u8>, tag: u8, body: &[u8]) {
    payload.push(tag);
    payload.extend_from_slice(&(body.len() as u32).to_le_bytes());
    payload.extend_from_slice(body);
}

/// Takes the next item off `payload`.
fn pop(payload: &mut &[u8]) -> Result<Item, String> {
    let cut_short = || "an item is cut short".to_owned();
    let (head, rest) = payload.split_first_chunk::<5>().ok_or_else(cut_short)?;
    let [tag, a, b, c, d] = *head;
    let size = u32::from_le_bytes([a, b, c, d]) as usize;
    let (body, rest) = rest.split_at_checked(size).ok_or_else(cut_short)?;
    *payload = rest;
    match tag {
        TAG_IDENTITY => {
            let [raw] = words(body)?;
            RaftId::from_raft(raw).map(Item::Identity).ok_or_else(|| "no raft id".to_owned())
        }
        TAG_RESET => position(body).map(Item::Reset),
        TAG_ENTRY => {
            let entry = Entry::parse_from_bytes(body).map_err(|error| error.to_string())?;
            check_index(entry.index)?;
            Ok(Item::Entry(entry))
        }
        TAG_COMPACTED => position(body).map(Item::Compacted),
        TAG_HARD_STATE => words(body).map(|[term, vote, commit]| {
            Item::HardState(HardState { term, vote, commit, ..HardState::default() })
        }),
        unknown => Err(format!("unknown item {unknown}")),
    }
}

fn position(body: &[u8]) -> Result<LogPosition, String> {
    let [index, term] = words(body)?;
    check_index(index)?;
    Ok(LogPosition { index, term })
}

fn check_index(index: u64) -> Result<(), String> {
    if index <= INDEX_MAX { Ok(()) } else { Err(format!("no log comes to index {index}")) }
}

fn words<const COUNT: usize>(body: &[u8]) -> Result<[u64; COUNT], String> {
    let (chunks, rest) = body.as_chunks::<8>();
    let words: Vec<u64> = chunks.iter().map(|chunk| u64::from_le_bytes(*chunk)).collect();
    match <[u64; COUNT]>::try_from(words) {
        Ok(words) if rest.is_empty() => Ok(words),
        _ => Err(format!("an item of {} bytes where {} numbers were expected", body.len(), COUNT)),
    }
}

/// The log as the frames so far tell it.
#[derive(Default)]
pub(super) struct Replay {
    pub(super) raft_id: Option<RaftId>,
    pub(super) hard_state: HardState,
    pub(super) compacted: LogPosition,
    pub(super) entries: VecDeque<Entry>,
    pub(super) segments: VecDeque<(SegmentNumber, u64)>,
    /// Entries were missing before this index; a later `Compacted` must cover it.
    gap_before: u64,
}

impl Replay {
    pub(super) fn frame(
        &mut self,
        segment: SegmentNumber,
        mut payload: &[u8],
    ) -> Result<(), String> {
        if self.segments.back().is_none_or(|(last, _)| *last != segment) {
            self.segments.push_back((segment, 0));
        }
        while !payload.is_empty() {
            let item = pop(&mut payload)?;
            self.item(item);
        }
        Ok(())
    }

    fn item(&mut self, item: Item) {
        match item {
            Item::Identity(raft_id) => self.raft_id = Some(raft_id),
            Item::Reset(start) => {
                self.entries.clear();
                self.compacted = start;
                self.gap_before = 0;
                self.wrote(start.index);
            }
            Item::Entry(entry) => self.entry(entry),
            Item::Compacted(at) => {
                while self.entries.front().is_some_and(|entry| entry.index <= at.index) {
                    self.entries.pop_front();
                }
                if at.index >= self.compacted.index {
                    self.compacted = at;
                }
                if at.index + 1 >= self.gap_before {
                    self.gap_before = 0;
                }
            }
            Item::HardState(hard_state) => self.hard_state = hard_state,
        }
    }

    /// Older segments may be gone, so that entries begin anywhere.
    fn entry(&mut self, entry: Entry) {
        let index = entry.index;
        self.wrote(index);
        while self.entries.back().is_some_and(|last| last.index >= index) {
            self.entries.pop_back();
        }
        let follows = match self.entries.back() {
            Some(last) => last.index + 1 == index,
            None => self.compacted.index + 1 == index,
        };
        if !follows {
            self.entries.clear();
            self.gap_before = index;
        }
        self.entries.push_back(entry);
    }

    fn wrote(&mut self, index: u64) {
        if let Some((_, highest)) = self.segments.back_mut() {
            *highest = (*highest).max(index);
        }
    }

    /// Whether what was replayed is a log.
    pub(super) fn check(&self) -> Result<(), &'static str> {
        let first = self.entries.front().map_or(self.compacted.index + 1, |entry| entry.index);
        let last = self.compacted.index + self.entries.len() as u64;
        if self.gap_before != 0 || first != self.compacted.index + 1 {
            return Err("entries are missing");
        }
        if self.hard_state.commit < self.compacted.index || self.hard_state.commit > last {
            return Err("committed entries are missing");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_that_no_log_reaches_is_refused() {
        for index in [INDEX_MAX, INDEX_MAX + 1, u64::MAX] {
            let at = LogPosition { index, term: 1 };
            let entry = Entry { index, term: 1, ..Entry::default() };
            for item in [Item::Reset(at), Item::Compacted(at), Item::Entry(entry)] {
                let mut payload = Vec::new();
                push(&mut payload, &item);
                let mut replay = Replay::default();
                let replayed = replay.frame(SegmentNumber::FIRST, &payload);
                assert_eq!(replayed.is_ok(), index == INDEX_MAX, "{item:?}");
                let _whole_or_not = replay.check();
            }
        }
    }
}
