//! A node may open no more files, or have no more memory.

use super::{Entry, Nemesis, Scene};
use crate::cluster::place::NodeIndex;
use crate::failure::Failure;

#[derive(Clone, Copy)]
enum Resource {
    Files,
    Memory,
}

struct Limit {
    resource: Resource,
    hit: Option<NodeIndex>,
}

/// What is open already stays open.
const FILE_COUNT: u64 = 12;

pub(super) fn entries() -> Vec<Entry> {
    vec![
        Entry::within("no-files", "a node can open no file and take no connection", || {
            new(Resource::Files)
        }),
        Entry::within("no-memory", "a node gets no more memory than it has", || {
            new(Resource::Memory)
        }),
    ]
}

fn new(resource: Resource) -> Box<dyn Nemesis> {
    Box::new(Limit { resource, hit: None })
}

impl Resource {
    fn code(self) -> libc::__rlimit_resource_t {
        match self {
            Self::Files => libc::RLIMIT_NOFILE,
            Self::Memory => libc::RLIMIT_AS,
        }
    }
}

impl Nemesis for Limit {
    fn begin(&mut self, scene: &mut Scene<'_>) -> Result<Option<String>, Failure> {
        let Some(node) = scene.claim_one() else { return Ok(None) };
        self.hit = Some(node);
        scene.cluster.expect_end(node);
        let count = match self.resource {
            Resource::Files => FILE_COUNT,
            Resource::Memory => virtual_size_bytes(scene.cluster.process_id(node)),
        };
        scene.cluster.limit(node, self.resource.code(), count)?;
        Ok(Some(format!("{} to {count}", node.rack_name())))
    }

    fn end(&mut self, scene: &mut Scene<'_>) -> Result<(), Failure> {
        let Some(node) = self.hit.take() else { return Ok(()) };
        scene.cluster.limit(node, self.resource.code(), u64::MAX)?;
        scene.bring_back(&[node])
    }
}

/// What the process has reserved now, from `/proc/<id>/statm`.
fn virtual_size_bytes(process: Option<u32>) -> u64 {
    const PAGE_SIZE_BYTES: u64 = 4096;
    let file = process.map(|id| format!("/proc/{id}/statm"));
    let text = file.and_then(|file| std::fs::read_to_string(file).ok()).unwrap_or_default();
    let pages: Option<u64> = text.split(' ').next().and_then(|word| word.parse().ok());
    pages.map_or(u64::MAX, |pages| pages * PAGE_SIZE_BYTES)
}
