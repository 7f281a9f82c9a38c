//! Fetch sessions (KIP-227): a consumer names its partitions once and then only what changes.
//!
//! A session costs memory that a client decides about, so there are only so many: one that has not
//! been used for a while makes room for a new one, and who finds no room fetches without.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::position::Offset;
use meridian_protocol::ErrorCode;
use meridian_protocol::messages::{FetchPartition, FetchPartitionResponse, FetchRequest};

use super::read::Answer;
use super::run::Run;
use super::{NO_SESSION, names_by_id};
use crate::kafka::lookup::TopicKey;
use crate::kafka::repeated::unique;
use crate::kafka::{Front, lock};

/// A session that was used within this time is not evicted.
const EVICT_AFTER: Duration = Duration::from_secs(120);
/// Who reads more partitions fetches without a session.
const PARTITION_COUNT_MAX: usize = 10_000;
/// Epochs of a request: the last of a session (or none at all), and the first.
const EPOCH_FINAL: i32 = -1;
const EPOCH_INITIAL: i32 = 0;

/// One partition to read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) topic: TopicKey,
    pub(super) index: i32,
    pub(super) offset: Offset,
    pub(super) leader_epoch: i32,
    pub(super) last_fetched_epoch: i32,
    pub(super) bytes_max: usize,
    pub(super) run: Run,
}

impl Target {
    fn new(topic: TopicKey, partition: &FetchPartition) -> Self {
        Self {
            topic,
            index: partition.partition,
            offset: Offset::new(partition.fetch_offset),
            leader_epoch: partition.current_leader_epoch,
            last_fetched_epoch: partition.last_fetched_epoch,
            bytes_max: usize::try_from(partition.partition_max_bytes).unwrap_or(0).max(1),
            run: Run::of(partition),
        }
    }
}

type Key = (TopicKey, i32);

/// What the client was last told of a partition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Told {
    high_watermark: i64,
    log_start_offset: i64,
}

impl Told {
    const NOTHING: Self = Self { high_watermark: -1, log_start_offset: -1 };

    fn by(response: &FetchPartitionResponse) -> Self {
        Self {
            high_watermark: response.high_watermark,
            log_start_offset: response.log_start_offset,
        }
    }
}

#[derive(Debug)]
struct Session {
    epoch: i32,
    by_id: bool,
    used_at: Instant,
    /// In the order they are read in: who got records goes to the end, so that all get some.
    order: BTreeMap<u64, (Target, Told)>,
    turns: HashMap<Key, u64>,
    next_turn: u64,
}

impl Session {
    fn update(&mut self, key: Key, target: Target) {
        match self.turns.get(&key) {
            Some(turn) => {
                if let Some((known, _)) = self.order.get_mut(turn) {
                    *known = target;
                }
            }
            None => self.append(key, target, Told::NOTHING),
        }
    }

    fn append(&mut self, key: Key, target: Target, told: Told) {
        self.order.insert(self.next_turn, (target, told));
        self.turns.insert(key, self.next_turn);
        self.next_turn += 1;
    }

    fn remove(&mut self, key: &Key) -> Option<(Target, Told)> {
        self.order.remove(&self.turns.remove(key)?)
    }

    /// Whether the client must be told, and remembers that it was.
    fn tell(&mut self, answer: &Answer, target: &Target) -> bool {
        let key = (target.topic.clone(), target.index);
        let Some((_, told)) = self.turns.get(&key).and_then(|turn| self.order.get_mut(turn)) else {
            return true;
        };
        let response = &answer.response;
        let now = Told::by(response);
        let is_news = !response.error_code.is_none()
            || response.preferred_read_replica != -1
            || response.diverging_epoch.epoch != -1;
        if !is_news && answer.size_bytes == 0 && (*told == now || now == Told::NOTHING) {
            return false;
        }
        // After an error the client is told everything anew.
        *told = if is_news { Told::NOTHING } else { now };
        if answer.size_bytes > 0
            && let Some((target, told)) = self.remove(&key)
        {
            self.append(key, target, told);
        }
        true
    }
}

/// What a request asks for, all told.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) targets: Vec<Target>,
    pub(super) session_id: i32,
    session: Option<Arc<Mutex<Session>>>,
    /// Everything must be told, changed or not.
    is_full: bool,
}

/// The sessions of this node.
#[derive(Debug)]
pub(in crate::kafka) struct Sessions {
    count_max: usize,
    by_id: Mutex<HashMap<i32, Arc<Mutex<Session>>>>,
}

impl Sessions {
    /// No sessions, but room for `count_max`.
    pub(in crate::kafka) fn new(count_max: usize) -> Self {
        Self { count_max, by_id: Mutex::default() }
    }

    /// Finds, makes or ends the session of a request.
    pub(super) fn open(
        &self,
        front: &Front,
        request: &FetchRequest,
        version: i16,
    ) -> Result<Opened, ErrorCode> {
        let by_id = names_by_id(version);
        match request.session_epoch {
            EPOCH_FINAL | EPOCH_INITIAL => {
                lock(&self.by_id).remove(&request.session_id);
                let targets = targets(request, by_id);
                let session = (request.session_epoch == EPOCH_INITIAL)
                    .then(|| self.create(front, &targets, by_id))
                    .flatten();
                let (session_id, session) = session.unzip();
                let session_id = session_id.unwrap_or(NO_SESSION);
                Ok(Opened { targets, session_id, session, is_full: true })
            }
            epoch => self.resume(front, request, epoch, by_id),
        }
    }

    fn create(
        &self,
        front: &Front,
        targets: &[Target],
        by_id: bool,
    ) -> Option<(i32, Arc<Mutex<Session>>)> {
        if targets.is_empty() || targets.len() > PARTITION_COUNT_MAX {
            return None;
        }
        let now = front.now();
        let mut sessions = lock(&self.by_id);
        if sessions.len() >= self.count_max {
            let used_at = |session: &Arc<Mutex<Session>>| lock(session).used_at;
            let oldest = sessions.iter().map(|(id, session)| (used_at(session), *id)).min()?;
            if now.since(oldest.0) < EVICT_AFTER {
                return None;
            }
            sessions.remove(&oldest.1);
        }
        let mut session = Session {
            epoch: EPOCH_INITIAL + 1,
            by_id,
            used_at: now,
            order: BTreeMap::new(),
            turns: HashMap::new(),
            next_turn: 0,
        };
        for target in targets {
            let topic = target.topic.to_owned();
            let target = Target { topic: topic.clone(), ..target.clone() };
            session.update((topic, target.index), target);
        }
        let session = Arc::new(Mutex::new(session));
        let id = std::iter::repeat_with(|| front.random_u128() as i32 & i32::MAX)
            .find(|id| *id != NO_SESSION && !sessions.contains_key(id))?;
        sessions.insert(id, Arc::clone(&session));
        Some((id, session))
    }

    fn resume(
        &self,
        front: &Front,
        request: &FetchRequest,
        epoch: i32,
        by_id: bool,
    ) -> Result<Opened, ErrorCode> {
        let session_id = request.session_id;
        let session = lock(&self.by_id).get(&session_id).cloned();
        let session = session.ok_or(ErrorCode::FetchSessionIdNotFound)?;
        let mut state = lock(&session);
        if state.by_id != by_id {
            return Err(ErrorCode::FetchSessionTopicIdError);
        }
        if state.epoch != epoch {
            return Err(ErrorCode::InvalidFetchSessionEpoch);
        }
        state.epoch = if epoch == i32::MAX { EPOCH_INITIAL + 1 } else { epoch + 1 };
        state.used_at = front.now();
        for topic in &request.forgotten_topics_data {
            let key = TopicKey::new(by_id, &topic.topic, topic.topic_id);
            for index in &topic.partitions {
                state.remove(&(key.clone(), *index));
            }
        }
        for target in targets(request, by_id) {
            let topic = target.topic.to_owned();
            let target = Target { topic: topic.clone(), ..target };
            state.update((topic, target.index), target);
        }
        let targets: Vec<Target> = state.order.values().map(|(target, _)| target.clone()).collect();
        // Sessions are locked after the map that holds them, never before.
        drop(state);
        if targets.len() > PARTITION_COUNT_MAX {
            lock(&self.by_id).remove(&session_id);
            return Err(ErrorCode::FetchSessionIdNotFound);
        }
        Ok(Opened { targets, session_id, session: Some(session), is_full: false })
    }

    /// Which answers the client must be given.
    pub(super) fn keep(&self, opened: &Opened, answers: &[Answer]) -> Vec<bool> {
        let Some(session) = &opened.session else { return vec![true; answers.len()] };
        let mut session = lock(session);
        let told = opened.targets.iter().zip(answers);
        told.map(|(target, answer)| session.tell(answer, target) || opened.is_full).collect()
    }
}

fn targets(request: &FetchRequest, by_id: bool) -> Vec<Target> {
    let topics = request
        .topics
        .iter()
        .map(|topic| (TopicKey::new(by_id, &topic.topic, topic.topic_id), &topic.partitions));
    let targets = topics.flat_map(|(key, partitions)| {
        partitions.iter().map(move |partition| Target::new(key.clone(), partition))
    });
    unique(targets.collect(), |target: &Target| (target.topic.clone(), target.index))
}
