//! Processes of the world: started, killed, paused.

use std::time::Duration;

use meridian_storage::journal::OpenError;
use meridian_storage::tier::pair::PairError;

use super::{APPLY_DELAY, Event, TICK_EVERY, World};
use crate::check::{Promise, Verdict, Violation};
use crate::disk::Moved;
use crate::node::Node;
use crate::seat::{Seat, fresh_incarnation};

/// Between two files that move, at least.
const MOVE_REST: Duration = Duration::from_millis(1);

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
        if !self.mount(node)? {
            let delay = self.chance.around(Duration::from_secs(1));
            self.schedule(delay, Event::Restart { node });
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
        self.is_whole(node)?;
        if self.nodes[node].disk.is_tiered() {
            self.schedule(TICK_EVERY, Event::Move { node, boot });
        }
        self.schedule(TICK_EVERY, Event::Tick { node, boot });
        let delay = self.chance.around(APPLY_DELAY);
        self.schedule(delay, Event::ApplyMetadata { node });
        Ok(())
    }

    /// Mounts a node's disks. With one of two lost its operator empties both.
    fn mount(&mut self, node: usize) -> Result<bool, Violation> {
        let disk = &mut self.nodes[node].disk;
        let (is_half, is_unharmed) = (disk.is_half(), disk.is_unharmed());
        let refused = disk.mount();
        let detail = match refused {
            Ok(()) if is_half => {
                format!("N{node} uses two disks that are no pair, or of two times")
            }
            Ok(()) => return Ok(true),
            Err(PairError::Disk(error)) => {
                self.trace.event(self.now, format_args!("N{node}: {error}"));
                return Ok(false);
            }
            Err(error) if is_unharmed => format!("N{node} refuses its own disks: {error:?}"),
            Err(error) => {
                self.trace.event(self.now, format_args!("N{node}: {error:?}; both are emptied"));
                self.nodes[node].disk.wipe();
                return Ok(false);
            }
        };
        Err(Violation { promise: Promise::Invariant, detail })
    }

    /// Two disks that did nothing worse than to lose their power, at whatever moment, hold all that they held.
    fn is_whole(&self, node: usize) -> Verdict {
        let Node { id, boot, disk, seat, .. } = &self.nodes[node];
        let Some(identity) = seat.as_ref().map(Seat::identity) else { return Ok(()) };
        let is_unsure = identity.incarnation == fresh_incarnation(*id, *boot);
        if !is_unsure || !disk.is_unharmed() || identity.mount_epoch == 1 {
            return Ok(());
        }
        let detail = format!("N{node} has lost something between its two disks");
        Err(Violation { promise: Promise::Invariant, detail })
    }

    /// Who moves files from the fast disk to the capacity disk does its next step.
    pub(super) fn move_files(&mut self, node: usize, boot: u64) {
        if self.nodes[node].boot != boot || !self.nodes[node].is_up() {
            return;
        }
        let Some((moved, delay)) = self.nodes[node].disk.move_files() else { return };
        self.counters.moved_count += u64::from(matches!(moved, Moved::Placed(_)));
        if moved != Moved::Nothing {
            self.trace.event(self.now, format_args!("N{node} moves files: {moved:?}"));
        }
        self.schedule(delay.max(MOVE_REST), Event::Move { node, boot });
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
