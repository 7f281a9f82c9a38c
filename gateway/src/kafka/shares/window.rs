//! The window of a partition that a group shares, on the partition's leader: a [`SharePartition`] under a lock, and a
//! task that opens its state, has its deltas kept, and frees what was held for too long.

use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use meridian_base::env::Instant;
use meridian_base::position::Offset;
use meridian_broker::share::{
    Answer, Delta, Opening, ShareAsk, ShareError, ShareImage, SharePartition, ShareQuestion,
};
use meridian_consensus::state::Partition;
use meridian_protocol::ErrorCode;
use tokio::sync::{Notify, oneshot};

use super::{WindowKey, keeping, settings};
use crate::group::consumer::TopicPartition;
use crate::kafka::configs::share::Reset;
use crate::kafka::{Front, error, list_offsets, lock};
use crate::log::PartitionLog;

/// How long a coordinator is asked before those who wait are refused: takeovers take a second or two.
const KEEP_WITHIN: Duration = Duration::from_secs(20);
/// How often it is asked meanwhile.
const ASK_AGAIN_AFTER: Duration = Duration::from_millis(100);
/// How often it is looked whether the partition is still led here.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Who waits until an acknowledgement is kept.
pub(super) type Waiter = oneshot::Sender<Result<(), ErrorCode>>;

#[derive(Debug)]
enum Phase {
    Opening,
    Serving(Box<SharePartition<Waiter>>),
    Closed(ErrorCode),
}

/// See the module.
pub(super) struct Window {
    group: Arc<str>,
    partition: TopicPartition,
    log: Arc<PartitionLog>,
    phase: Mutex<Phase>,
    /// Rings for the task.
    work: Notify,
    /// Those of fetches that wait for something to be free.
    fetches: Mutex<Vec<Weak<Notify>>>,
    front: Weak<Front>,
}

impl Window {
    /// A window whose state is being opened.
    pub(super) fn open(
        front: &Arc<Front>,
        group: &Arc<str>,
        partition: TopicPartition,
        log: &Arc<PartitionLog>,
    ) -> Arc<Self> {
        let window = Arc::new(Self {
            group: Arc::clone(group),
            partition,
            log: Arc::clone(log),
            phase: Mutex::new(Phase::Opening),
            work: Notify::new(),
            fetches: Mutex::default(),
            front: Arc::downgrade(front),
        });
        tokio::spawn(Arc::clone(&window).run());
        window
    }

    /// What the window is found by.
    pub(super) fn key(&self) -> WindowKey {
        (Arc::clone(&self.group), self.log.ownership().partition)
    }

    /// The log of the partition.
    pub(super) fn log(&self) -> &Arc<PartitionLog> {
        &self.log
    }

    /// Whether it is of this log.
    pub(super) fn is_of(&self, log: &Arc<PartitionLog>) -> bool {
        Arc::ptr_eq(&self.log, log)
    }

    /// Whether it is of no use any more.
    pub(super) fn is_closed(&self) -> bool {
        matches!(*lock(&self.phase), Phase::Closed(_))
    }

    /// Records that members hold.
    pub(super) fn held_count(&self) -> u64 {
        match &*lock(&self.phase) {
            Phase::Serving(partition) => partition.held_count(),
            Phase::Opening | Phase::Closed(_) => 0,
        }
    }

    /// Looks at the partition, and has the task take up what comes of that; `None` while it is being opened.
    pub(super) fn with<R>(
        &self,
        look: impl FnOnce(&mut SharePartition<Waiter>) -> R,
    ) -> Result<Option<R>, ErrorCode> {
        let looked = match &mut *lock(&self.phase) {
            Phase::Opening => return Ok(None),
            Phase::Closed(code) => return Err(*code),
            Phase::Serving(partition) => look(partition),
        };
        self.work.notify_one();
        Ok(Some(looked))
    }

    /// A member is gone.
    pub(super) fn release(&self, member: &str) {
        // One that is being opened, or closed, has nothing that the member holds.
        let _nothing_held = self.with(|partition| partition.release(member));
        self.wake_fetches();
    }

    /// Rings `bell` when there may be something to fetch, or the window is closed.
    pub(super) fn notify(&self, bell: &Arc<Notify>) {
        let mut fetches = lock(&self.fetches);
        let is_same = |known: &Weak<Notify>| std::ptr::eq(known.as_ptr(), Arc::as_ptr(bell));
        if !fetches.iter().any(is_same) {
            fetches.retain(|known| known.strong_count() > 0);
            fetches.push(Arc::downgrade(bell));
        }
    }

    /// Wakes fetches that wait: there may be something free.
    pub(super) fn wake_fetches(&self) {
        lock(&self.fetches).iter().filter_map(Weak::upgrade).for_each(|bell| bell.notify_one());
    }

    /// Those who wait are answered `code`, and nothing is given out here any more.
    pub(super) fn close(&self, code: ErrorCode) {
        // Who waits for an acknowledgement is answered as its sender is dropped.
        let before = std::mem::replace(&mut *lock(&self.phase), Phase::Closed(code));
        drop(before);
        self.work.notify_one();
        self.wake_fetches();
    }

    async fn run(self: Arc<Self>) {
        let code = match self.begin().await {
            Ok(opening) => self.serve(opening).await,
            Err(code) => code,
        };
        self.close(code);
        if let Some(front) = self.front.upgrade() {
            front.shares.forget(&self);
        }
    }

    /// Opens the state, and says where the group begins if nobody has yet: before anything is given out, so that the
    /// next leader begins there too.
    async fn begin(&self) -> Result<Opening, ErrorCode> {
        let until = tokio::time::Instant::now() + KEEP_WITHIN;
        loop {
            let front = self.front()?;
            if !self.is_led(&front) {
                return Err(ErrorCode::NotLeaderOrFollower);
            }
            // Of each try its own, so that one that comes late voids the window and is not taken for it.
            let opening = Opening(front.random_u128().max(1));
            let opened = self.ask(&front, opening, ShareAsk::Open(self.log.leader_epoch())).await;
            match opened {
                Ok(image) => {
                    let image = image.unwrap_or_default();
                    return self.begin_from(&front, opening, &image).await;
                }
                Err(ShareError::Unavailable) if tokio::time::Instant::now() < until => {}
                Err(error) => return Err(error::of_share(error)),
            }
            drop(front);
            tokio::time::sleep(ASK_AGAIN_AFTER).await;
        }
    }

    async fn begin_from(
        &self,
        front: &Front,
        opening: Opening,
        image: &ShareImage,
    ) -> Result<Opening, ErrorCode> {
        let settings = settings(front, &self.group);
        let start = match image.start {
            Some(start) => start,
            None => self.first_offset(front, settings.reset).await?,
        };
        let end = self.log.high_watermark();
        let log_start = self.log.log_start_offset();
        // A log that has stopped says 0 to both, and the group would begin anew there.
        if !self.is_led(front) {
            return Err(ErrorCode::NotLeaderOrFollower);
        }
        // Operators may have set it beyond the end.
        let mut partition = match start > end {
            true => SharePartition::restore(settings.limits, &ShareImage::default(), end),
            false => SharePartition::restore(settings.limits, image, start),
        };
        partition.on_log_start(log_start);
        if let Some(delta) = partition.take_delta() {
            let kept = self.keep(opening, delta).await;
            partition.on_written(kept);
            kept.map_err(error::of_share)?;
        }
        {
            let mut phase = lock(&self.phase);
            if let Phase::Closed(code) = *phase {
                return Err(code);
            }
            *phase = Phase::Serving(Box::new(partition));
        }
        self.wake_fetches();
        Ok(opening)
    }

    async fn first_offset(&self, front: &Front, reset: Reset) -> Result<Offset, ErrorCode> {
        match reset {
            Reset::Earliest => Ok(self.log.log_start_offset()),
            Reset::Latest => Ok(self.log.high_watermark()),
            Reset::ByDuration(duration) => {
                let age_ms = i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
                let since_ms = front.broker.wall_time_ms().saturating_sub(age_ms).max(0);
                let found = list_offsets::first_record(&self.log, since_ms).await?;
                Ok(found.map_or_else(|| self.log.high_watermark(), |(_, offset)| offset))
            }
        }
    }

    /// Has deltas kept until that can't be, and gives why.
    async fn serve(&self, opening: Opening) -> ErrorCode {
        loop {
            let Ok(front) = self.front() else { return ErrorCode::NotLeaderOrFollower };
            if !self.is_led(&front) {
                return ErrorCode::NotLeaderOrFollower;
            }
            let now = front.now();
            let (delta, has_freed, wake_at) = match &mut *lock(&self.phase) {
                Phase::Serving(partition) => {
                    partition.on_log_start(self.log.log_start_offset());
                    let has_freed = partition.expire(now);
                    (partition.take_delta(), has_freed, partition.next_expiry())
                }
                Phase::Opening => return ErrorCode::NotLeaderOrFollower,
                Phase::Closed(code) => return *code,
            };
            if has_freed {
                self.wake_fetches();
            }
            drop(front);
            match delta {
                Some(delta) => {
                    let kept = self.keep(opening, delta).await;
                    self.on_kept(kept);
                    if let Err(error) = kept {
                        return error::of_share(error);
                    }
                }
                None => self.wait(now, wake_at).await,
            }
        }
    }

    fn on_kept(&self, kept: Result<(), ShareError>) {
        let answers: Vec<Answer<Waiter>> = match &mut *lock(&self.phase) {
            Phase::Serving(partition) => partition.on_written(kept),
            Phase::Opening | Phase::Closed(_) => Vec::new(),
        };
        for (waiter, kept) in answers {
            let _gone = waiter.send(kept.map_err(error::of_share));
        }
        self.wake_fetches();
    }

    async fn wait(&self, now: Instant, wake_at: Option<Instant>) {
        let pause = wake_at.map_or(LOOK_EVERY, |at| at.since(now).min(LOOK_EVERY));
        tokio::select! {
            () = self.work.notified() => {}
            () = tokio::time::sleep(pause) => {}
        }
    }

    /// Has a delta kept. It is numbered, so that it may be asked for again.
    async fn keep(&self, opening: Opening, delta: Delta) -> Result<(), ShareError> {
        let until = tokio::time::Instant::now() + KEEP_WITHIN;
        loop {
            let front = self.front.upgrade().ok_or(ShareError::Unavailable)?;
            let kept = self.ask(&front, opening, ShareAsk::Write(delta.clone())).await;
            let is_over = tokio::time::Instant::now() >= until || !self.is_led(&front);
            match kept {
                Err(ShareError::Unavailable) if !is_over && !self.is_closed() => {}
                kept => return kept.map(drop),
            }
            drop(front);
            tokio::time::sleep(ASK_AGAIN_AFTER).await;
        }
    }

    async fn ask(
        &self,
        front: &Front,
        opening: Opening,
        ask: ShareAsk,
    ) -> Result<Option<ShareImage>, ShareError> {
        let group = self.group.to_string();
        let question = ShareQuestion { group, partition: self.partition, opening, ask };
        keeping::ask(&*front.broker, question).await
    }

    /// Whether this node leads the partition, by all that was decided before the question (rule G10). One that was
    /// replaced and does not know it would give out what others have accepted meanwhile.
    pub(super) async fn confirm_led(&self, front: &Front) -> bool {
        front.broker.catch_up().await.is_ok() && self.is_led(front)
    }

    fn is_led(&self, front: &Front) -> bool {
        // The log itself hears a little later that it was replaced.
        let held = self.log.ownership();
        let metadata = front.broker.metadata();
        let is_its = |known: &Partition| {
            known.leader == front.broker.node() && known.generation == held.generation
        };
        metadata.partition(held.partition).is_some_and(is_its) && self.log.is_serving()
    }

    fn front(&self) -> Result<Arc<Front>, ErrorCode> {
        self.front.upgrade().ok_or(ErrorCode::NotLeaderOrFollower)
    }
}
