//! Reads: from memory if the blobs are fresh, else from the disk, checksums verified.

use std::collections::{BTreeMap, VecDeque};

use bytes::Bytes;
use meridian_base::env::{DiskError, Instant};

use super::relocate::Run;
use super::{Origin, Store, StoreOutput};
use crate::blob::{Blob, BlobHeader, BlobKey, Payload};
use crate::journal::{DiskOp, FileSequence, Location};
use crate::message::{Read, ReadFrom, ReadReply, StorageMessage};
use crate::mutation::Mutation;
use crate::wire::Room;
use meridian_base::position::LogPoint;

/// Payloads written of late, oldest first.
#[derive(Debug, Default)]
pub(super) struct Cache {
    payloads: BTreeMap<BlobKey, Payload>,
    order: VecDeque<BlobKey>,
    size_bytes: usize,
}

impl Cache {
    pub(super) fn insert(&mut self, key: BlobKey, payload: Payload, size_bytes_max: usize) {
        self.size_bytes += payload.size_bytes();
        match self.payloads.insert(key, payload) {
            Some(replaced) => self.size_bytes -= replaced.size_bytes(),
            None => self.order.push_back(key),
        }
        while self.size_bytes > size_bytes_max {
            let Some(oldest) = self.order.pop_front() else { break };
            if let Some(payload) = self.payloads.remove(&oldest) {
                self.size_bytes -= payload.size_bytes();
            }
        }
    }

    fn get(&self, key: BlobKey, header: &BlobHeader) -> Option<Payload> {
        self.payloads.get(&key).filter(|payload| header.matches(payload)).cloned()
    }
}

/// What a disk read is for.
#[derive(Debug)]
pub(super) enum Purpose {
    /// Blob number `index` of a request.
    Serve { read: u64, index: usize },
    /// What was written to a file that is being emptied.
    Contents(FileSequence),
    /// Blobs on their way out of such a file.
    Move(Run),
    /// What the scrub looks at.
    Scrub,
}

/// Requests that wait for the disk.
#[derive(Debug, Default)]
pub(super) struct Reads {
    next: u64,
    purposes: BTreeMap<u64, Purpose>,
    waiting: BTreeMap<u64, Waiting>,
}

#[derive(Debug)]
struct Waiting {
    origin: Origin,
    tag: u64,
    /// Damaged is better than none.
    as_found: bool,
    blobs: Vec<Part>,
    missing_count: usize,
}

#[derive(Debug)]
struct Part {
    key: BlobKey,
    header: BlobHeader,
    location: Location,
    payload: Option<Payload>,
    failure: Option<ReadReply>,
}

impl Reads {
    /// Takes a number for a disk read or for a request that waits for some.
    pub(super) fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

impl Store {
    pub(super) fn read(
        &mut self,
        origin: Origin,
        tag: u64,
        request: Read,
        outputs: &mut Vec<StoreOutput>,
    ) {
        self.counters.reads += 1;
        let blobs = self.select(&request);
        if blobs.is_empty() {
            return send(origin, tag, ReadReply::NotHere, outputs);
        }
        if self.reads.waiting.len() >= self.config.reads_max {
            return send(origin, tag, ReadReply::Unreadable, outputs);
        }
        let as_found = request.size_bytes_max == Read::AS_FOUND;
        let mut waiting = Waiting { origin, tag, as_found, missing_count: 0, blobs };
        let read = self.reads.number();
        for index in 0..waiting.blobs.len() {
            let part = &mut waiting.blobs[index];
            part.payload = self.cache.get(part.key, &part.header);
            if part.payload.is_some() {
                self.counters.cache_hits += 1;
            } else {
                waiting.missing_count += 1;
                let (location, size_bytes) = (part.location, part.header.payload_size_bytes);
                self.read_disk(location, size_bytes, Purpose::Serve { read, index });
            }
        }
        if waiting.missing_count == 0 {
            self.answer_read(waiting, outputs);
        } else {
            self.reads.waiting.insert(read, waiting);
        }
    }

    /// The blobs that answer a request.
    fn select(&self, request: &Read) -> Vec<Part> {
        let Some(partition) = self.index.get(request.partition) else { return Vec::new() };
        let from = match request.from {
            ReadFrom::Step(step) => Some(step),
            ReadFrom::Offset(offset) => partition.step_of(request.generation, offset),
        };
        let Some(from) = from else { return Vec::new() };
        let size_bytes_max = u64::from(request.size_bytes_max.min(self.config.read_size_bytes_max));
        let mut size_bytes = 0;
        let mut room = Room::of_read_reply(self.config.sizes.message_size_bytes_max);
        let mut parts = Vec::new();
        for entry in partition.run(request.generation, from, request.last_step) {
            size_bytes += u64::from(entry.header().whole().payload_size_bytes);
            // Headers take room too: of many small blobs, as much as they do.
            let fits = room.take_blob(&entry.header()) && size_bytes <= size_bytes_max;
            if !parts.is_empty() && !fits {
                break;
            }
            let point = LogPoint::new(request.generation, entry.step);
            parts.push(Part {
                key: BlobKey { partition: request.partition, point },
                header: entry.header(),
                location: entry.location(),
                payload: None,
                failure: None,
            });
        }
        parts
    }

    pub(super) fn read_disk(&mut self, location: Location, size_bytes: u32, purpose: Purpose) {
        let token = self.reads.number();
        self.reads.purposes.insert(token, purpose);
        self.ops.push(DiskOp::Read {
            token,
            file: location.file.log_name(),
            offset_bytes: u64::from(location.offset_bytes),
            size_bytes,
            past_cache: false,
        });
    }

    /// Reads a part of a file for the scrub: from the device, whatever the system has in memory.
    pub(super) fn read_for_scrub(
        &mut self,
        file: String,
        offset_bytes: u32,
        size_bytes: u32,
    ) -> u64 {
        let token = self.reads.number();
        self.reads.purposes.insert(token, Purpose::Scrub);
        let offset_bytes = u64::from(offset_bytes);
        self.ops.push(DiskOp::Read { token, file, offset_bytes, size_bytes, past_cache: true });
        token
    }

    pub(super) fn read_contents(&mut self, file: FileSequence, size_bytes: u32) {
        let token = self.reads.number();
        self.reads.purposes.insert(token, Purpose::Contents(file));
        let file = file.index_name();
        let past_cache = false;
        self.ops.push(DiskOp::Read { token, file, offset_bytes: 0, size_bytes, past_cache });
    }

    pub(super) fn disk_read(
        &mut self,
        now: Instant,
        token: u64,
        result: Result<Bytes, DiskError>,
        outputs: &mut Vec<StoreOutput>,
    ) {
        match self.reads.purposes.remove(&token) {
            Some(Purpose::Serve { read, index }) => self.blob_read(read, index, result, outputs),
            Some(Purpose::Contents(file)) => self.contents_read(file, result),
            Some(Purpose::Move(run)) => self.run_read(run, result),
            Some(Purpose::Scrub) => self.scrub_read(now, token, result),
            None => {}
        }
    }

    fn blob_read(
        &mut self,
        read: u64,
        index: usize,
        result: Result<Bytes, DiskError>,
        outputs: &mut Vec<StoreOutput>,
    ) {
        let Some(waiting) = self.reads.waiting.get_mut(&read) else { return };
        let part = &mut waiting.blobs[index];
        let (key, header, location) = (part.key, part.header, part.location);
        let as_found = waiting.as_found;
        let is_damage = result.as_ref().err().is_none_or(DiskError::is_of_the_file);
        let found = result.ok();
        let payload = found.clone().map(Payload::from).filter(|bytes| header.matches(bytes));
        if !is_damage {
            part.failure = Some(ReadReply::Unreadable);
        } else if payload.is_none() {
            let size_bytes = header.payload_size_bytes;
            match self.index.blob(key).map(|entry| (entry.location(), entry.header() == header)) {
                None => part.failure = Some(ReadReply::NotHere),
                // Another took its place meanwhile.
                Some((_, false)) => part.failure = Some(ReadReply::Unreadable),
                Some((moved, true)) if moved != location => {
                    part.location = moved;
                    return self.read_disk(moved, size_bytes, Purpose::Serve { read, index });
                }
                Some(_) => {
                    let given = found.clone().filter(|_| as_found);
                    part.failure = Some(given.map_or(ReadReply::Unreadable, |bytes| {
                        ReadReply::Damaged(Blob { key, header, payload: bytes.into() })
                    }));
                    self.blob_unreadable(key, header, location, found);
                }
            }
        }
        let Some(waiting) = self.reads.waiting.get_mut(&read) else { return };
        waiting.blobs[index].payload = payload;
        waiting.missing_count -= 1;
        if waiting.missing_count == 0
            && let Some(waiting) = self.reads.waiting.remove(&read)
        {
            self.answer_read(waiting, outputs);
        }
    }

    /// Answers with the blobs up to the first that could not be read.
    fn answer_read(&mut self, waiting: Waiting, outputs: &mut Vec<StoreOutput>) {
        let mut blobs = Vec::with_capacity(waiting.blobs.len());
        let mut failure = ReadReply::Unreadable;
        for part in waiting.blobs {
            let Some(payload) = part.payload else {
                failure = part.failure.unwrap_or(failure);
                break;
            };
            self.counters.read_bytes += u64::from(part.header.payload_size_bytes);
            blobs.push(Blob { key: part.key, header: part.header, payload });
        }
        let reply = if !blobs.is_empty() {
            ReadReply::Blobs(blobs)
        } else if Mutation::UnsureIsEmpty.active(self.config.mutations) {
            ReadReply::NotHere
        } else {
            failure
        };
        send(waiting.origin, waiting.tag, reply, outputs);
    }
}

fn send(to: Origin, tag: u64, reply: ReadReply, outputs: &mut Vec<StoreOutput>) {
    outputs.push(StoreOutput::Send { to, message: StorageMessage::ReadReply { tag, reply } });
}
