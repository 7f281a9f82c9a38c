//! What the process takes: memory and descriptors, looked at all the time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::clock;
use crate::cost::number_after;

const LOOK_EVERY: Duration = Duration::from_millis(100);

/// The most of each that was seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Watched {
    pub(super) memory_bytes: u64,
    pub(super) descriptor_count: u64,
    pub(super) descriptor_limit: u64,
}

pub(super) struct Watch {
    process: u32,
    stop: Arc<AtomicBool>,
    looking: JoinHandle<Watched>,
}

impl Watch {
    pub(super) fn start(process: u32) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let looking = std::thread::spawn(move || {
            let mut watched = Watched::default();
            while !stopped.load(Ordering::Acquire) {
                watched.look(process);
                clock::sleep(LOOK_EVERY);
            }
            watched
        });
        Self { process, stop, looking }
    }

    /// What the process takes now.
    pub(super) fn memory_bytes(&self) -> u64 {
        let mut watched = Watched::default();
        watched.look(self.process);
        watched.memory_bytes
    }

    pub(super) fn end(self) -> Watched {
        self.stop.store(true, Ordering::Release);
        self.looking.join().unwrap_or_default()
    }
}

impl Watched {
    fn look(&mut self, process: u32) {
        let read = |name: &str| std::fs::read_to_string(format!("/proc/{process}/{name}"));
        if let Some(kib) = read("status").ok().and_then(|text| number_after(&text, "VmRSS:")) {
            self.memory_bytes = self.memory_bytes.max(kib << 10);
        }
        if let Ok(descriptors) = std::fs::read_dir(format!("/proc/{process}/fd")) {
            self.descriptor_count = self.descriptor_count.max(descriptors.count() as u64);
        }
        let limit = read("limits").ok().and_then(|text| number_after(&text, "Max open files"));
        self.descriptor_limit = limit.unwrap_or(self.descriptor_limit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_takes_something() {
        let mut watched = Watched::default();
        watched.look(std::process::id());
        assert!(watched.memory_bytes > 0 && watched.descriptor_count > 0);
        assert!(watched.descriptor_limit >= watched.descriptor_count);
    }
}
