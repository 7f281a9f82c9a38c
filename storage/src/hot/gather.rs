//! Reading blobs in parts: one slot's answer says what there is, others' bring the rest of it.

use meridian_base::id::PartitionId;
use meridian_base::position::{Generation, Step};
use meridian_base::quorum::PARTS_NEEDED;

use super::{AssembleError, Assembly};
use crate::blob::{Blob, BlobKey};
use crate::message::{Read, ReadFrom};

/// What a slot gave.
#[derive(Clone, Debug)]
pub enum Given {
    /// Whole blobs.
    Whole(Vec<Blob>),
    /// Its parts of some.
    Parts(Gathering),
}

impl Given {
    /// Takes the whole blobs of an answer up to the first part, or of its parts those up to the first
    /// whole one; `None` if it is empty.
    pub fn of(mut blobs: Vec<Blob>) -> Option<Self> {
        let is_part = |blob: &Blob| blob.header.part.is_some();
        let first = blobs.first()?;
        let (key, in_parts) = (first.key, is_part(first));
        let same = blobs.iter().take_while(|blob| is_part(blob) == in_parts).count();
        blobs.truncate(same);
        if !in_parts {
            return Some(Self::Whole(blobs));
        }
        let last_step = blobs.last().map_or(key.point.step, |last| last.key.point.step);
        Some(Self::Parts(Gathering {
            partition: key.partition,
            generation: key.point.generation,
            first_step: key.point.step,
            last_step,
            wanted: blobs.iter().map(Wanted::new).collect(),
        }))
    }
}

/// Blobs of one leader that follow each other, and the parts of them that were read.
#[derive(Clone, Debug)]
pub struct Gathering {
    partition: PartitionId,
    generation: Generation,
    first_step: Step,
    last_step: Step,
    wanted: Vec<Wanted>,
}

#[derive(Clone, Debug)]
struct Wanted {
    key: BlobKey,
    parts: Assembly,
}

impl Wanted {
    fn new(blob: &Blob) -> Self {
        let mut parts = Assembly::of(&blob.header);
        parts.add(&blob.header, &blob.payload);
        Self { key: blob.key, parts }
    }

    /// The whole blob: no bytes are believed whose checksum is not the blob's.
    fn join(self) -> Result<Blob, AssembleError> {
        let payload = self.parts.payload()?;
        Ok(Blob { key: self.key, header: *self.parts.header(), payload })
    }
}

impl Gathering {
    /// What to ask other slots for.
    pub fn request(&self) -> Read {
        Read {
            partition: self.partition,
            generation: self.generation,
            from: ReadFrom::Step(self.first_step),
            last_step: self.last_step,
            size_bytes_max: u32::MAX,
        }
    }

    /// Parts that the first blob lacks: as many further slots are to be asked at once.
    pub fn missing_count(&self) -> usize {
        let first = self.wanted.first();
        first.map_or(0, |first| PARTS_NEEDED.saturating_sub(first.parts.count()))
    }

    /// Takes what another slot gave.
    pub fn add(&mut self, blobs: &[Blob]) {
        for blob in blobs {
            if let Some(wanted) = self.wanted.iter_mut().find(|wanted| wanted.key == blob.key) {
                wanted.parts.add(&blob.header, &blob.payload);
            }
        }
    }

    /// The blobs up to the first that lacks a part: those after it are read again by whoever wants them.
    pub fn join(self) -> Result<Vec<Blob>, AssembleError> {
        let whole = self.wanted.into_iter().take_while(|wanted| wanted.parts.is_enough());
        whole.map(Wanted::join).collect()
    }
}
