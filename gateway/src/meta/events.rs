//! What applied entries ask of the node, in order, until the node has come to it. Bounded: a node that is too far
//! behind goes by the metadata as it is, as after a snapshot.

use std::collections::VecDeque;
use std::sync::Mutex;

use tokio::sync::Notify;

use super::{MetaEvent, lock};

/// Most events that wait for the node.
const EVENT_COUNT_MAX: usize = 10_000;

#[derive(Default)]
struct Queue {
    events: VecDeque<MetaEvent>,
    is_closed: bool,
}

/// Events on their way from the metadata thread to the node.
#[derive(Default)]
pub(crate) struct Events {
    queue: Mutex<Queue>,
    bell: Notify,
}

impl Events {
    /// Adds an event; false if there is no room, and nothing waits any more.
    pub(super) fn push(&self, event: MetaEvent) -> bool {
        let mut queue = lock(&self.queue);
        let has_room = queue.events.len() < EVENT_COUNT_MAX;
        if has_room {
            queue.events.push_back(event);
        } else {
            queue.events.clear();
        }
        drop(queue);
        self.bell.notify_one();
        has_room
    }

    /// Nothing comes any more.
    pub(super) fn close(&self) {
        lock(&self.queue).is_closed = true;
        self.bell.notify_one();
    }

    /// The next event; `None` when nothing comes any more.
    pub(crate) async fn next(&self) -> Option<MetaEvent> {
        loop {
            {
                let mut queue = lock(&self.queue);
                if let Some(event) = queue.events.pop_front() {
                    return Some(event);
                }
                if queue.is_closed {
                    return None;
                }
            }
            self.bell.notified().await;
        }
    }
}
