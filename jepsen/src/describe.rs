//! Messages in a few words, for the trace.

use std::fmt;

use meridian_storage::message::StorageMessage;

use crate::node::Packet;

/// A packet in a few words.
pub(crate) struct Words<'a>(pub(crate) &'a Packet);

impl fmt::Display for Words<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Packet::Storage(message) => storage(message, f),
            Packet::Request { partition, asker, request } => {
                write!(f, "#{} {partition:?} {request:?}", asker.request)
            }
            Packet::Reply { request, reply } => write!(f, "#{request} {reply:?}"),
            Packet::Ask { partition, asker, ask } => {
                write!(f, "#{} {partition:?} {ask:?}", asker.request)
            }
            Packet::Told { request, told } => write!(f, "#{request} {told:?}"),
            Packet::Link(packet) => write!(f, "{packet:?}"),
            Packet::Follow(message) => write!(f, "{message:?}"),
            Packet::AbortOpen { .. }
            | Packet::Verify { .. }
            | Packet::Verified { .. }
            | Packet::Vouch { .. }
            | Packet::WriteMarker { .. }
            | Packet::Marked { .. } => write!(f, "{:?}", self.0),
        }
    }
}

fn storage(message: &StorageMessage, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match message {
        StorageMessage::Put(put) => {
            let (key, header) = (put.blob.key, put.blob.header);
            write!(
                f,
                "put {:?} {} {:?} at {} crc {:08x} {:?} mark {:?}",
                key.partition,
                key.point,
                header.kind,
                header.base_offset,
                header.payload_crc,
                put.config_version,
                put.mark.map(|mark| (mark.point, mark.high_watermark)),
            )
        }
        StorageMessage::PutReplies(replies) => replies.iter().try_for_each(|reply| {
            let key = reply.key;
            write!(
                f,
                "put {:?} {} {:?}: {:?} ",
                key.partition, key.point, reply.incarnation, reply.result
            )
        }),
        StorageMessage::FenceRead { tag, request } => {
            write!(f, "fence {:?} {:?} tag {tag:x}", request.entries, request.config_version)
        }
        StorageMessage::FenceReadReply { tag, reply } => {
            write!(f, "fenced tag {tag:x} {reply:?}")
        }
        StorageMessage::Read { tag, request } => write!(f, "read tag {tag:x} {request:?}"),
        StorageMessage::ReadReply { tag, reply } => write!(f, "read tag {tag:x} {reply:?}"),
        StorageMessage::SyncPull { tag, request } => write!(f, "sync tag {tag:x} {request:?}"),
        StorageMessage::SyncPage { tag, page } => write!(f, "sync tag {tag:x} {page:?}"),
        StorageMessage::Beacons(beacons) => write!(f, "beacons {beacons:?}"),
        StorageMessage::ListParts { request, .. } => write!(f, "{request:?}"),
        StorageMessage::PartList { list, .. } => write!(f, "{list:?}"),
        StorageMessage::FreeParts(freed) => write!(f, "{freed:?}"),
        StorageMessage::ListCopies { request, .. } => write!(f, "{request:?}"),
        StorageMessage::CopyList { tag, list } => write!(f, "list {tag:x} {list:?}"),
        StorageMessage::FreeCopies(freed) => write!(f, "{freed:?}"),
        StorageMessage::ScrubAsk { tag, slot } => write!(f, "scrub? tag {tag:x} {slot:?}"),
        StorageMessage::ScrubAnswer { tag, busy } => write!(f, "scrub tag {tag:x} busy {busy}"),
    }
}
