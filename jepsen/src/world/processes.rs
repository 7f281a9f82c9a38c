//! Processes of the world: started, killed, paused.

use std::time::Duration;

use meridian_storage::journal::OpenError;

use super::{APPLY_DELAY, Event, TICK_EVERY, World};
use crate::check::Verdict;

impl World {
    /// Whether the node's process runs and is not paused.
    pub(crate) fn is_running(&self, node: usize) -> bool {
        self.nodes[node].is_up() && self.paused[node].is_none()
    }

    /// Starts a node that is down. A disk that can't be mounted is emptied by its operator.
    pub(crate) fn start_node(&mut self, node: usize) -> Verdict {
        if self.nodes[node].is_up() {
            return Ok(());
        }
        let mut mounted = Ok(());
        self.with_node(node, |node, now, out| mounted = node.start(now, out))?;
        let boot = self.nodes[node].boot;
        if let Err(error) = mounted {
            self.trace.event(self.now, format_args!("N{node} boot {boot}: {error}"));
            if error == OpenError::IdentityUnreadable {
                self.nodes[node].disk.wipe();
            }
            let delay = self.chance.around(Duration::from_secs(1));
            self.schedule(delay, Event::Restart { node });
            return Ok(());
        }
        self.trace.event(self.now, format_args!("N{node} starts, boot {boot}"));
        self.schedule(TICK_EVERY, Event::Tick { node, boot });
        self.schedule(APPLY_DELAY, Event::ReportMount { node, boot });
        let delay = self.chance.around(APPLY_DELAY);
        self.schedule(delay, Event::ApplyMetadata { node });
        Ok(())
    }

    /// Kills a node and cuts its disk's power.
    pub(crate) fn stop_node(&mut self, node: usize) {
        if !self.nodes[node].is_up() {
            return;
        }
        self.trace.event(self.now, format_args!("N{node} stops"));
        self.paused[node] = None;
        self.nodes[node].stop();
        self.nodes[node].disk.crash();
    }

    /// Lets a paused node go on; what waited for it happens now.
    pub(crate) fn resume_node(&mut self, node: usize) {
        if let Some(waiting) = self.paused[node].take() {
            self.trace.event(self.now, format_args!("N{node} resumes"));
            for event in waiting {
                self.schedule(Duration::ZERO, event);
            }
        }
    }
}
