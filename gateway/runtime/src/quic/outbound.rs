//! Send queues, and the tasks that drain them into streams.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard};

use meridian_base::sync::lock;
use tokio::sync::Notify;

use super::framing::{FrameWriter, HEADER_BYTES};
use super::{Frame, SendError};

/// The writer takes so much from the queue at a time: enough to fill many packets, little enough
/// that the queue gets room again soon.
const BATCH_BYTES: usize = 256 << 10;

/// The frames waiting for one channel of one peer. Bounded in bytes; a frame counts until QUIC has
/// taken it.
pub(super) struct SendQueue {
    state: Mutex<QueueState>,
    filled: Notify,
    bytes_max: usize,
}

#[derive(Default)]
struct QueueState {
    open: bool,
    frames: VecDeque<(Frame, usize)>,
    queued_bytes: usize,
}

impl SendQueue {
    /// A closed queue.
    pub(super) fn new(bytes_max: usize) -> Self {
        Self { state: Mutex::default(), filled: Notify::new(), bytes_max }
    }

    pub(super) fn push(&self, frame: Frame, length_bytes: usize) -> Result<(), SendError> {
        let mut state = self.lock();
        if !state.open {
            return Err(SendError::Down);
        }
        let queued_bytes = state.queued_bytes + length_bytes + HEADER_BYTES;
        if queued_bytes > self.bytes_max {
            return Err(SendError::Full);
        }
        state.queued_bytes = queued_bytes;
        let was_empty = state.frames.is_empty();
        state.frames.push_back((frame, length_bytes));
        drop(state);
        if was_empty {
            self.filled.notify_one();
        }
        Ok(())
    }

    pub(super) fn queued_bytes(&self) -> usize {
        self.lock().queued_bytes
    }

    /// Whether frames are let in.
    pub(super) fn is_open(&self) -> bool {
        self.lock().open
    }

    /// Lets frames in.
    pub(super) fn open(&self) {
        self.lock().open = true;
    }

    /// Drops all frames and lets no more in.
    pub(super) fn close(&self) {
        *self.lock() = QueueState::default();
    }

    /// Moves up to a batch of frames to `writer`; returns their bytes, which still count.
    fn take(&self, writer: &mut FrameWriter) -> usize {
        let mut state = self.lock();
        let mut taken_bytes = 0;
        while taken_bytes < BATCH_BYTES
            && let Some((frame, length_bytes)) = state.frames.pop_front()
        {
            taken_bytes += length_bytes + HEADER_BYTES;
            writer.push(frame, length_bytes);
        }
        taken_bytes
    }

    fn release(&self, bytes: usize) {
        let mut state = self.lock();
        state.queued_bytes = state.queued_bytes.saturating_sub(bytes);
    }

    fn lock(&self) -> MutexGuard<'_, QueueState> {
        // A panic elsewhere leaves a queue that is still consistent.
        lock(&self.state)
    }
}

/// Drains `queue` into `stream` until the stream breaks. Everything that has gathered while the
/// last write was under way goes out in one write; a lone frame goes out at once.
pub(super) async fn write_frames(
    queue: &SendQueue,
    stream: &mut quinn::SendStream,
    mut on_sent: impl FnMut(usize),
) -> Result<(), quinn::WriteError> {
    let mut writer = FrameWriter::default();
    loop {
        let taken_bytes = queue.take(&mut writer);
        if taken_bytes == 0 {
            queue.filled.notified().await;
            continue;
        }
        stream.write_all_chunks(writer.chunks()).await?;
        writer.clear();
        queue.release(taken_bytes);
        on_sent(taken_bytes);
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;

    fn push(queue: &SendQueue, length_bytes: usize) -> Result<(), SendError> {
        queue.push(Frame::from(Bytes::from(vec![0; length_bytes])), length_bytes)
    }

    #[test]
    fn is_bounded_in_bytes_until_they_are_released() {
        let queue = SendQueue::new(100);
        assert_eq!(push(&queue, 1), Err(SendError::Down));
        queue.open();
        assert_eq!(push(&queue, 96), Ok(()));
        assert_eq!(push(&queue, 0), Err(SendError::Full));
        let taken_bytes = queue.take(&mut FrameWriter::default());
        assert_eq!(taken_bytes, 100);
        assert_eq!(push(&queue, 0), Err(SendError::Full));
        queue.release(taken_bytes);
        assert_eq!(push(&queue, 0), Ok(()));
        assert_eq!(queue.queued_bytes(), HEADER_BYTES);
    }

    #[test]
    fn closing_drops_what_is_queued() {
        let queue = SendQueue::new(100);
        queue.open();
        assert_eq!(push(&queue, 10), Ok(()));
        queue.close();
        assert_eq!(queue.queued_bytes(), 0);
        assert_eq!(push(&queue, 10), Err(SendError::Down));
        queue.open();
        assert_eq!(queue.take(&mut FrameWriter::default()), 0);
    }

    #[test]
    fn a_batch_is_bounded() {
        let queue = SendQueue::new(100 * BATCH_BYTES);
        queue.open();
        for _ in 0..10 {
            push(&queue, BATCH_BYTES / 2).unwrap();
        }
        let taken_bytes = queue.take(&mut FrameWriter::default());
        assert!((BATCH_BYTES..2 * BATCH_BYTES).contains(&taken_bytes));
    }
}
