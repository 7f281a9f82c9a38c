//! The threads that read a disk: several, as a disk is idle while one reader waits for it.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};

use super::store::DiskJob;

/// No more threads read one disk.
const THREAD_COUNT_MAX: usize = 4;
/// A thread that is awake takes so many reads before another one is woken.
const WAITING_COUNT_FEW: usize = 2;

/// How many threads read a disk: as many as there are processors, and two at least.
fn thread_count() -> usize {
    std::thread::available_parallelism().map_or(2, NonZeroUsize::get).clamp(2, THREAD_COUNT_MAX)
}

/// Hands reads to the threads, in no order.
pub(super) struct ReadThreads(Vec<ReadQueue>);

struct ReadQueue {
    jobs: Sender<DiskJob>,
    waiting_count: Arc<AtomicUsize>,
}

/// What one of the threads is to do, and how many reads it has to do still.
pub(super) struct ReadJobs {
    pub(super) jobs: Receiver<DiskJob>,
    pub(super) waiting_count: Arc<AtomicUsize>,
}

impl ReadThreads {
    /// The queues, and the other end of each.
    pub(super) fn new() -> (Self, Vec<ReadJobs>) {
        let queue = |_| {
            let (sender, jobs) = mpsc::channel();
            let waiting_count = Arc::new(AtomicUsize::new(0));
            let queue = ReadQueue { jobs: sender, waiting_count: Arc::clone(&waiting_count) };
            (queue, ReadJobs { jobs, waiting_count })
        };
        let (queues, jobs) = (0..thread_count()).map(queue).unzip();
        (Self(queues), jobs)
    }

    /// Has one of the threads do it.
    pub(super) fn send(&self, job: DiskJob) {
        if let Some(queue) = self.0.get(self.choose()) {
            queue.waiting_count.fetch_add(1, Ordering::Relaxed);
            let _thread_is_gone = queue.jobs.send(job);
        }
    }

    /// Has each of the threads close a file.
    pub(super) fn close(&self, file: &str) {
        for queue in &self.0 {
            let _thread_is_gone = queue.jobs.send(DiskJob::Close(file.to_owned()));
        }
    }

    /// Reads that wait.
    pub(super) fn waiting_count(&self) -> usize {
        self.0.iter().map(|queue| queue.waiting_count.load(Ordering::Relaxed)).sum()
    }

    /// The first thread that has little to do, or the one with the least.
    fn choose(&self) -> usize {
        let counts = self.0.iter().map(|queue| queue.waiting_count.load(Ordering::Relaxed));
        let by_count = |(index, count): (usize, usize)| (count.max(WAITING_COUNT_FEW - 1), index);
        counts.enumerate().map(by_count).min().map_or(0, |(_, index)| index)
    }
}

#[cfg(test)]
mod tests {
    use meridian_storage::journal::DiskOp;

    use super::*;

    #[test]
    fn another_thread_is_woken_when_those_awake_have_enough_to_do() {
        let (threads, jobs) = ReadThreads::new();
        let count = jobs.len();
        let read =
            |threads: &ReadThreads| threads.send(DiskJob::Do(DiskOp::Remove { files: vec![] }));
        let waiting = || jobs.iter().map(|it| it.waiting_count.load(Ordering::Relaxed));
        for _ in 0..WAITING_COUNT_FEW {
            read(&threads);
        }
        assert_eq!(waiting().next(), Some(WAITING_COUNT_FEW));
        for _ in 0..WAITING_COUNT_FEW * (count - 1) {
            read(&threads);
        }
        assert!(waiting().all(|waiting| waiting == WAITING_COUNT_FEW));
        assert_eq!(threads.waiting_count(), WAITING_COUNT_FEW * count);
    }

    #[test]
    fn each_thread_closes_a_file_that_goes_after_what_it_has_to_read_of_it() {
        let (threads, jobs) = ReadThreads::new();
        threads.send(DiskJob::Do(DiskOp::Remove { files: vec![] }));
        threads.close("file");
        for (index, jobs) in jobs.iter().enumerate() {
            let is_close = |job: DiskJob| matches!(job, DiskJob::Close(file) if file == "file");
            let closes: Vec<bool> = jobs.jobs.try_iter().map(is_close).collect();
            assert_eq!(closes, if index == 0 { vec![false, true] } else { vec![true] });
        }
    }
}
