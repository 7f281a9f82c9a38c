//! The reads of a broker: what each is for.

use meridian_base::position::Offset;
use meridian_broker::replica::read::BlobRead;
use meridian_storage::blob::{Blob, BlobKind};
use meridian_storage::message::{Read, ReadFrom};

use crate::broker::Asker;
use crate::value::PlacedBatch;

/// What a read is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// What a new leader's state is rebuilt from.
    Rebuild,
    /// A reader's fetch.
    Fetch {
        /// The reader.
        asker: Asker,
        /// What it asked for.
        from: Offset,
        /// Where the manifest's piece that is read ends, if it is one.
        piece_end: Option<Offset>,
    },
    /// A pass of compaction.
    Compact {
        /// What it asked for.
        from: Offset,
        /// Where the manifest's piece that is read ends, if it is one.
        piece_end: Option<Offset>,
    },
    /// Records that are to be packed into a stripe.
    Pack {
        /// What it asked for.
        from: Offset,
    },
    /// A stripe of which parts are missing.
    Mend,
    /// A fetch of a mirror.
    Link {
        /// The node that asks, of the other cluster.
        node: usize,
        /// From where on.
        from: Offset,
    },
    /// The batch that ends a mirror's own log.
    OwnEnd {
        /// Where that ends.
        end: Offset,
    },
    /// A coordinator's log.
    Load {
        /// What it asked for.
        from: Offset,
    },
    /// A reader's fetch of committed records.
    FetchCommitted {
        /// The reader.
        asker: Asker,
        /// What it asked for.
        from: Offset,
    },
}

/// A read under way.
#[derive(Debug)]
pub(crate) enum ReadTask {
    /// Of a takeover's tail: the takeover itself asks elsewhere.
    Tail,
    /// Of what the slots hold.
    Blobs {
        /// What it is for.
        purpose: Purpose,
        /// What is asked.
        request: Read,
        /// Which slots are asked.
        read: Box<BlobRead>,
    },
}

impl ReadTask {
    /// What it is for.
    pub(crate) fn purpose(&self) -> Option<Purpose> {
        match self {
            Self::Tail => None,
            Self::Blobs { purpose, .. } => Some(*purpose),
        }
    }

    /// The reader that waits for the answer, if it is one.
    pub(crate) fn asker(&self) -> Option<Asker> {
        self.purpose()?.asker()
    }
}

impl Purpose {
    /// The reader that waits for the answer, if it is one.
    pub(crate) fn asker(&self) -> Option<Asker> {
        match *self {
            Self::Fetch { asker, .. } | Self::FetchCommitted { asker, .. } => Some(asker),
            Self::Rebuild
            | Self::Link { .. }
            | Self::OwnEnd { .. }
            | Self::Load { .. }
            | Self::Pack { .. }
            | Self::Mend
            | Self::Compact { .. } => None,
        }
    }
}

/// The blobs that answer a read of records: those of a run are asked for by their step.
pub(crate) fn answers<'a>(request: &Read, blobs: &'a [Blob]) -> impl Iterator<Item = &'a Blob> {
    let kind = match request.from {
        ReadFrom::Offset(_) => BlobKind::Records,
        ReadFrom::Step(_) => BlobKind::Clean,
    };
    blobs.iter().filter(move |blob| blob.header.kind == kind)
}

/// The record batches in `blobs`, or what is wrong with them.
pub(crate) fn batches_of(request: &Read, blobs: &[Blob]) -> Result<Vec<PlacedBatch>, String> {
    let mut batches = Vec::new();
    for blob in answers(request, blobs) {
        let decoded = PlacedBatch::read_all(blob.payload.to_contiguous())
            .ok_or_else(|| format!("{} holds no batches", blob.key.point))?;
        let has_gaps = blob.header.kind == BlobKind::Clean;
        if !has_gaps
            && decoded.first().is_none_or(|first| first.base_offset != blob.header.base_offset)
        {
            return Err(format!("{} does not begin where its header says", blob.key.point));
        }
        batches.extend(decoded);
    }
    Ok(batches)
}
