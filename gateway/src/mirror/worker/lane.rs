//! One connection to a broker of the source, and the fetches that are under way over it: they are sent in order, and
//! what comes of them is told in order.

use std::collections::{HashSet, VecDeque};
use std::hash::Hash;
use std::sync::Arc;

use meridian_base::env::Instant;
use meridian_base::position::Offset;
use meridian_mirror::partition::Answer;
use meridian_mirror::{Answered, Pipeline, Portion};
use tokio::sync::mpsc;

use super::Event;
use crate::client::Connection;
use crate::mirror::question::{self, Asker, Fetched, Sent, Want};

/// Partitions of one fetch.
const FETCH_COUNT_MAX: usize = 1000;
/// More than are ever under way.
const QUEUE_COUNT_MAX: usize = 64;

/// A connection over which partitions are fetched.
pub(super) struct FetchLane {
    pub(super) connection: Arc<Connection>,
    /// What no fetch under way asks for.
    pub(super) wants: Vec<Want>,
    /// The oldest first: answers come in this order.
    under_way: VecDeque<UnderWay>,
    pipeline: Pipeline,
    fetches: mpsc::Sender<Fetch>,
}

struct UnderWay {
    wants: Vec<Want>,
    asked_at: Instant,
}

struct Fetch {
    asked_at: Instant,
    wants: Vec<Want>,
    size_bytes: u64,
    packs: bool,
}

impl FetchLane {
    pub(super) fn new(connection: Arc<Connection>, events: mpsc::Sender<Event>) -> Self {
        let (fetches, to_send) = mpsc::channel(QUEUE_COUNT_MAX);
        let (sent, to_answer) = mpsc::channel(QUEUE_COUNT_MAX);
        tokio::spawn(send_all(Arc::clone(&connection), to_send, sent));
        tokio::spawn(tell_all(Arc::clone(&connection), to_answer, events));
        let pipeline = Pipeline::new(connection.round_trip());
        Self { connection, wants: Vec::new(), under_way: VecDeque::new(), pipeline, fetches }
    }

    /// Whether nothing is wanted and nothing is to come.
    pub(super) fn is_over(&self) -> bool {
        self.wants.is_empty() && self.under_way.is_empty()
    }

    /// Whether something is wanted and nothing under way.
    pub(super) fn is_held(&self) -> bool {
        !self.wants.is_empty() && self.under_way.is_empty()
    }

    /// When the next fetch may be sent, if there is something to ask for.
    pub(super) fn next_at(&self) -> Option<Instant> {
        let last_count = self.under_way.back().map_or(0, |last| last.wants.len());
        let named_count = self.wants.len() + last_count;
        let at = self.pipeline.next_at(self.under_way.len(), named_count);
        at.filter(|_| named_count > 0)
    }

    /// Sends a fetch for what is wanted, and for what the source may go on with: `goes_on_from` says from where.
    pub(super) fn send(
        &mut self,
        now: Instant,
        portion: &Portion,
        packs: bool,
        goes_on_from: impl Fn(&Asker) -> Option<Offset>,
    ) {
        let mut first = first_of_each(&mut self.wants, Want::place);
        let mut wants = take_in_turn(&mut first, FETCH_COUNT_MAX);
        self.wants.splice(..0, first);
        if let Some(last) = self.under_way.back() {
            let named: HashSet<_> = wants.iter().map(Want::place).collect();
            let again = |want: &Want| {
                let from = goes_on_from(&want.asker).filter(|_| !named.contains(&want.place()))?;
                Some(Want { from, goes_on: true, ..want.clone() })
            };
            let mut all: Vec<Want> = last.wants.iter().filter_map(again).collect();
            wants.extend(take_in_turn(&mut all, FETCH_COUNT_MAX));
        }
        // Or nothing may be asked for now: it is looked again when the next may be sent.
        self.pipeline.on_asked(now);
        if wants.is_empty() {
            return;
        }
        let size_bytes = self.pipeline.size_bytes(portion.size_bytes());
        self.under_way.push_back(UnderWay { wants: wants.clone(), asked_at: now });
        // There is room for all that may be under way; a task that has ended says so in its last answer.
        let _has_room = self.fetches.try_send(Fetch { asked_at: now, wants, size_bytes, packs });
    }

    /// The oldest fetch under way was answered: whoever is asked for in a later one hears more.
    pub(super) fn on_fetched(
        &mut self,
        now: Instant,
        portion: &mut Portion,
        fetched: &mut Fetched,
    ) {
        let Some(UnderWay { asked_at, .. }) = self.under_way.pop_front() else {
            return;
        };
        let Fetched { size_bytes, can_run, .. } = *fetched;
        let answered = Answered { asked_at, size_bytes, can_run };
        portion.on_answer(size_bytes, self.pipeline.on_answer(now, answered));
        let later = || self.under_way.iter().flat_map(|it| &it.wants);
        for (asker, answer) in &mut fetched.answers {
            if let Ok(Answer::Fetched { goes_on, .. }) = answer {
                *goes_on = later().any(|want| want.asker == *asker);
            }
        }
    }
}

async fn send_all(
    connection: Arc<Connection>,
    mut fetches: mpsc::Receiver<Fetch>,
    sent: mpsc::Sender<(Instant, Sent)>,
) {
    while let Some(Fetch { asked_at, wants, size_bytes, packs }) = fetches.recv().await {
        let fetch = question::send_fetch(&connection, wants, size_bytes, packs).await;
        let _this_node_ends = sent.send((asked_at, fetch)).await;
    }
}

async fn tell_all(
    lane: Arc<Connection>,
    mut sent: mpsc::Receiver<(Instant, Sent)>,
    events: mpsc::Sender<Event>,
) {
    while let Some((asked_at, fetch)) = sent.recv().await {
        let fetched = question::fetched(&lane, fetch).await;
        let lane = Arc::clone(&lane);
        let _worker_is_gone = events.send(Event::Fetched { lane, asked_at, fetched }).await;
    }
}

/// Takes the first that asks for each place, as a source answers for each once: several mirrors of one
/// topic take turns.
fn first_of_each<T, K: Eq + Hash>(wants: &mut Vec<T>, place: impl Fn(&T) -> K) -> Vec<T> {
    let mut named = HashSet::new();
    let all = std::mem::take(wants).into_iter();
    let (first, others) = all.partition(|want| named.insert(place(want)));
    *wants = others;
    first
}

/// Takes what the next request asks for. Who was asked for first may have filled the whole answer, and goes
/// last this time.
fn take_in_turn<T>(wants: &mut Vec<T>, count_max: usize) -> Vec<T> {
    let count = wants.len().min(count_max);
    wants.rotate_left(count.min(1));
    wants.drain(..count).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_for_the_same_place_as_another_is_next() {
        let place = |want: &(char, i32)| want.1;
        let mut wants = vec![('a', 1), ('b', 1), ('c', 2)];
        assert_eq!(first_of_each(&mut wants, place), [('a', 1), ('c', 2)]);
        assert_eq!(wants, [('b', 1)]);
        // The others were answered, and want more.
        wants.extend([('a', 1), ('c', 2)]);
        assert_eq!(first_of_each(&mut wants, place), [('b', 1), ('c', 2)]);
        assert_eq!(wants, [('a', 1)]);
    }

    #[test]
    fn each_that_wants_something_is_first_in_its_turn() {
        let mut wants = vec!['a', 'b', 'c'];
        let mut firsts = Vec::new();
        for _ in 0..3 {
            let asked = take_in_turn(&mut wants, 1000);
            firsts.push(asked[0]);
            // All want more, and say so in the order of the answer.
            wants = asked;
        }
        firsts.sort_unstable();
        assert_eq!(firsts, ['a', 'b', 'c']);
        assert_eq!(take_in_turn(&mut wants, 2).len(), 2);
        assert_eq!(take_in_turn(&mut wants, 2).len(), 1);
        assert_eq!(take_in_turn(&mut wants, 2), []);
    }
}
