//! Who a disk is, and which journal files it has. Two copies, so that one bad sector costs nothing.

use bytes::{BufMut, Bytes, BytesMut};
use meridian_base::env::{Disk, DiskError};
use meridian_base::id::Incarnation;

use super::FileSequence;
use super::disk_op::{DiskOp, read, replace};
use crate::codec::{DecodeError, Source};

pub(crate) const COPIES: [&str; 2] = ["identity-a", "identity-b"];
const SIZE_BYTES_MAX: u64 = 1 << 20;
const FORMAT: u8 = 1;

/// What a disk says of itself when it is mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Given when the disk was formatted; every batch names it.
    pub disk: u64,
    /// The present life of its contents.
    pub incarnation: Incarnation,
    /// Grows by one with each mount. The cluster remembers the highest: a disk that mounts with
    /// less is an old copy of itself (rule 12).
    pub mount_epoch: u64,
}

/// The identity and the list of journal files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Superblock {
    pub(super) identity: Identity,
    /// Grows with each change, to tell which copy is newer.
    pub(super) version: u64,
    /// In rising order.
    pub(super) files: Vec<FileSequence>,
    /// The next file's number, so that none is ever reused.
    pub(super) next_file: FileSequence,
    /// Corruption in files below this one was made good by a sync.
    pub(super) repaired_below: FileSequence,
}

/// What the copies on the disk came to.
pub(super) enum Loaded {
    /// There are none.
    Absent,
    /// There are some, none of them readable.
    Unreadable,
    /// The newest readable one.
    Found(Superblock),
}

impl Superblock {
    pub(super) fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(64 + self.files.len() * 4);
        out.put_u32(0); // crc, below
        out.put_u8(FORMAT);
        out.put_u64(self.identity.disk);
        out.put_u64(self.identity.incarnation.get());
        out.put_u64(self.identity.mount_epoch);
        out.put_u64(self.version);
        out.put_u32(self.next_file.get());
        out.put_u32(self.repaired_below.get());
        out.put_u32(self.files.len() as u32);
        for file in &self.files {
            out.put_u32(file.get());
        }
        let crc = crc32c::crc32c(&out[4..]);
        out[..4].copy_from_slice(&crc.to_be_bytes());
        out.freeze()
    }

    pub(super) fn decode(bytes: Bytes) -> Result<Self, DecodeError> {
        let mut source = Source::new(bytes.clone(), "disk identity");
        let crc = source.u32()?;
        if crc != crc32c::crc32c(&bytes[4..]) {
            return Err(source.invalid("crc", u64::from(crc)));
        }
        let format = source.u8()?;
        if format != FORMAT {
            return Err(source.invalid("format", u64::from(format)));
        }
        let identity = Identity {
            disk: source.u64()?,
            incarnation: Incarnation::new(source.u64()?),
            mount_epoch: source.u64()?,
        };
        let version = source.u64()?;
        let next_file = FileSequence::new(source.u32()?);
        let repaired_below = FileSequence::new(source.u32()?);
        let files = source.list(4, |source| Ok(FileSequence::new(source.u32()?)))?;
        source.finish()?;
        Ok(Self { identity, version, files, next_file, repaired_below })
    }

    pub(super) fn load(disk: &mut dyn Disk) -> Result<Loaded, DiskError> {
        let mut exists = false;
        let mut newest: Option<Self> = None;
        for copy in COPIES {
            let size_bytes = match disk.size_bytes(copy) {
                Err(DiskError::NotFound { .. }) => continue,
                size_bytes => size_bytes?,
            };
            exists = true;
            let decoded = match read(disk, copy, 0, size_bytes.min(SIZE_BYTES_MAX) as u32) {
                Err(error) if !error.is_of_the_file() => return Err(error),
                found => found.ok().and_then(|bytes| Self::decode(bytes).ok()),
            };
            if let Some(found) = decoded
                && newest.as_ref().is_none_or(|newest| found.version > newest.version)
            {
                newest = Some(found);
            }
        }
        Ok(match newest {
            Some(found) => Loaded::Found(found),
            None if exists => Loaded::Unreadable,
            None => Loaded::Absent,
        })
    }

    /// Writes both copies now.
    pub(super) fn save(&mut self, disk: &mut dyn Disk) -> Result<(), DiskError> {
        self.version += 1;
        let bytes = self.encode();
        COPIES.iter().try_for_each(|copy| replace(disk, copy, std::slice::from_ref(&bytes)))
    }

    /// The operations that write both copies.
    pub(super) fn save_ops(&mut self) -> [DiskOp; 2] {
        self.version += 1;
        let bytes = self.encode();
        COPIES.map(|copy| DiskOp::Replace { file: copy.to_owned(), parts: vec![bytes.clone()] })
    }
}
