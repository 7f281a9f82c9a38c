//! Memory that clients make the node hold: bytes of requests as they arrive, what requests are decoded to, and
//! answers until they are taken. Each kind has an account of its own, so that none takes what another needs.
//!
//! A connection waits in its turn for what it needs. While one waits, connections that are late give way, the
//! one that holds the most first: those whose client sends or reads slowly, or has requests wait behind an
//! answer that takes long. [`Account`] decides, without I/O.

mod account;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use meridian_base::env::Instant;
use meridian_runtime::failpoint;
use tokio::sync::Notify;

use self::account::{Account, HolderId, LOOK_EVERY};
use super::lock;

/// A client that keeps the node waiting for so long is late.
const LATE_AFTER: Duration = Duration::from_millis(250);
/// One that takes or gives so much in a second is not.
const PROMPT_BYTES_PER_SECOND: u64 = 1 << 20;
/// Not the client's turn.
const NEVER_US: u64 = u64::MAX;

/// What memory is held for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Requests with records, until these are committed.
    Records,
    /// Other requests, as almost all are.
    Small,
    /// Other requests that are large.
    Large,
    /// Answers.
    Answers,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Records, Self::Small, Self::Large, Self::Answers];
    /// Shares add up to so many.
    const SHARES: usize = 16;

    const fn name(self) -> &'static str {
        match self {
            Self::Records => "records",
            Self::Small => "small",
            Self::Large => "large",
            Self::Answers => "answers",
        }
    }

    const fn share(self) -> usize {
        match self {
            Self::Records => 8,
            Self::Small | Self::Large => 1,
            Self::Answers => 6,
        }
    }
}

/// What a connection waits for its client for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// The rest of a request.
    Send,
    /// Room for an answer.
    Read,
    /// Requests wait behind one whose answer takes its time, as the client wanted it.
    Queue,
}

impl Turn {
    fn late_after(self) -> Duration {
        match self {
            Self::Send | Self::Read => LATE_AFTER,
            // Consumers wait half a second for records, and may ask something else meanwhile.
            Self::Queue => LATE_AFTER * 4,
        }
    }
}

/// The memory of all clients of a node.
#[derive(Debug)]
pub(super) struct Memory {
    started: tokio::time::Instant,
    accounts: [Mutex<Account>; Kind::ALL.len()],
    holders: Mutex<HashMap<HolderId, Arc<Signals>>>,
    next_id: AtomicU64,
}

impl Memory {
    /// Accounts of `limit_bytes` in all.
    pub(super) fn new(limit_bytes: usize) -> Arc<Self> {
        let account =
            |kind: Kind| Mutex::new(Account::new(limit_bytes / Kind::SHARES * kind.share()));
        Arc::new(Self {
            started: tokio::time::Instant::now(),
            accounts: Kind::ALL.map(account),
            holders: Mutex::default(),
            next_id: AtomicU64::new(0),
        })
    }

    /// What a new connection holds: nothing.
    pub(super) fn holder(self: &Arc<Self>) -> Arc<Holder> {
        let id = HolderId(self.next_id.fetch_add(1, Ordering::Relaxed));
        let signals = Arc::new(Signals {
            late_at_us: [NEVER_US; 3].map(AtomicU64::new),
            served: Kind::ALL.map(|_| Notify::new()),
            gives_way: Notify::new(),
        });
        let mut holders = lock(&self.holders);
        failpoint::reach("lock");
        holders.insert(id, Arc::clone(&signals));
        drop(holders);
        Arc::new(Holder { memory: Arc::clone(self), id, signals })
    }

    /// Of each kind its name, the bytes held and the limit.
    pub(super) fn usage(&self) -> [(&'static str, usize, usize); Kind::ALL.len()] {
        Kind::ALL.map(|kind| {
            let account = lock(self.account(kind));
            (kind.name(), account.used_bytes(), account.limit_bytes())
        })
    }

    fn account(&self, kind: Kind) -> &Mutex<Account> {
        &self.accounts[kind as usize]
    }

    fn now(&self) -> Instant {
        Instant::ZERO + self.started.elapsed()
    }

    fn find(&self, id: HolderId) -> Option<Arc<Signals>> {
        lock(&self.holders).get(&id).map(Arc::clone)
    }

    fn wake(&self, kind: Kind, served: Vec<HolderId>) {
        for holder in served.into_iter().filter_map(|id| self.find(id)) {
            holder.served[kind as usize].notify_one();
        }
    }

    /// Has those give way who have to.
    fn look(&self, kind: Kind) {
        let now = self.now();
        let is_late = |id| self.find(id).is_some_and(|holder| holder.is_late(now));
        let late = lock(self.account(kind)).who_gives_way(now, is_late);
        for holder in late.into_iter().filter_map(|id| self.find(id)) {
            holder.gives_way.notify_one();
        }
    }
}

/// A connection, as the accounts know it. All that it holds is given back when it is dropped.
#[derive(Debug)]
pub(super) struct Holder {
    memory: Arc<Memory>,
    id: HolderId,
    signals: Arc<Signals>,
}

/// What a connection and the accounts tell each other.
#[derive(Debug)]
struct Signals {
    /// When the client will be late, by what is waited for.
    late_at_us: [AtomicU64; 3],
    served: [Notify; Kind::ALL.len()],
    gives_way: Notify,
}

impl Signals {
    fn is_late(&self, now: Instant) -> bool {
        self.late_at_us.iter().any(|late_at| now.as_micros() > late_at.load(Ordering::Relaxed))
    }
}

impl Holder {
    /// Returns when the connection has to end for others to have memory.
    pub(super) async fn gives_way(&self) {
        self.signals.gives_way.notified().await;
    }

    /// The node waits for the client from now on.
    pub(super) fn await_client(&self, turn: Turn) {
        let late_at = self.memory.now() + turn.late_after();
        self.signals.late_at_us[turn as usize].store(late_at.as_micros(), Ordering::Relaxed);
    }

    /// The client has sent or taken so much.
    pub(super) fn on_progress(&self, turn: Turn, size_bytes: usize) {
        let now = self.memory.now();
        let late_at = &self.signals.late_at_us[turn as usize];
        let before = Instant::from_micros(late_at.load(Ordering::Relaxed));
        let earned_us = (size_bytes as u64).saturating_mul(1_000_000) / PROMPT_BYTES_PER_SECOND;
        let after =
            (before.max(now) + Duration::from_micros(earned_us)).min(now + turn.late_after());
        late_at.store(after.as_micros(), Ordering::Relaxed);
    }

    /// The node does not wait for the client any more.
    pub(super) fn on_done(&self, turn: Turn) {
        self.signals.late_at_us[turn as usize].store(NEVER_US, Ordering::Relaxed);
    }

    /// Nothing, to which bytes can be added.
    pub(super) fn charge(self: &Arc<Self>, kind: Kind) -> Charge {
        Charge { holder: Arc::clone(self), kind, size_bytes: 0 }
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        lock(&self.memory.holders).remove(&self.id);
        for kind in Kind::ALL {
            let served = lock(self.memory.account(kind)).remove(self.id);
            self.memory.wake(kind, served);
        }
    }
}

/// Bytes of a connection, given back when it is dropped. Only one charge of each kind may wait at a time.
#[derive(Debug)]
pub(super) struct Charge {
    holder: Arc<Holder>,
    kind: Kind,
    size_bytes: usize,
}

impl Charge {
    /// Adds `size_bytes` as soon as there is room for them. If it is dropped meanwhile, the connection is to
    /// be dropped with it.
    pub(super) async fn take(&mut self, size_bytes: usize) {
        let Holder { memory, id, signals } = &*self.holder;
        if !lock(memory.account(self.kind)).take(memory.now(), *id, size_bytes) {
            let served = &signals.served[self.kind as usize];
            while tokio::time::timeout(LOOK_EVERY, served.notified()).await.is_err() {
                memory.look(self.kind);
            }
        }
        self.size_bytes += size_bytes;
    }

    /// Adds `size_bytes` if there is room for them now.
    pub(super) fn try_take(&mut self, size_bytes: usize) -> bool {
        let account = self.holder.memory.account(self.kind);
        let taken = lock(account).try_take(self.holder.id, size_bytes);
        self.size_bytes += if taken { size_bytes } else { 0 };
        taken
    }

    /// Makes it `size_bytes`, which are there already.
    pub(super) fn set(&mut self, size_bytes: usize) {
        let Holder { memory, id, .. } = &*self.holder;
        let mut account = lock(memory.account(self.kind));
        let served = match size_bytes.checked_sub(self.size_bytes) {
            Some(more_bytes) => {
                account.add(*id, more_bytes);
                Vec::new()
            }
            None => account.give_back(*id, self.size_bytes - size_bytes),
        };
        drop(account);
        self.size_bytes = size_bytes;
        memory.wake(self.kind, served);
    }

    /// What it is.
    pub(super) fn size_bytes(&self) -> usize {
        self.size_bytes
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.set(0);
    }
}

#[cfg(test)]
mod tests;
