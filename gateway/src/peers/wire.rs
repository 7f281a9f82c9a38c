//! What nodes ask each other for their clients. Mostly about transactions: the coordinator has markers
//! written by the leaders of partitions, and those ask it whether a partition belongs to a transaction.
//!
//! Numbers are big-endian. A node that does not know a message drops it; whoever asked asks again.

use bytes::{BufMut, Bytes, BytesMut};
use meridian_base::id::PartitionId;
use meridian_base::position::{LeaderEpoch, Offset};
use meridian_broker::share::{ShareAnswer, ShareQuestion};
use meridian_consensus::membership::RaftId;
use meridian_storage::codec::{DecodeError, Source};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::partition::{InTransaction, Marker, TransactionVersion, Verification, VerifyError};

const WRITE_MARKERS: u8 = 1;
const MARKERS_WRITTEN: u8 = 2;
const VERIFY: u8 = 3;
const VERIFIED: u8 = 4;
const ABORT_OPEN: u8 = 5;
const DESCRIBE_QUORUM: u8 = 6;
const QUORUM: u8 = 7;
const LEADS: u8 = 8;
const LEADING: u8 = 9;
const APPLIED: u8 = 12;
const HAS_APPLIED: u8 = 13;
const HEALTH: u8 = 10;
const FINDINGS: u8 = 11;
const ENDS: u8 = 14;
const ENDS_ARE: u8 = 15;
const QUOTA_REPORT: u8 = 20;
const QUOTA_SHARES: u8 = 21;
const SHARE: u8 = 16;
const SHARE_KEPT: u8 = 17;
/// The end of a log that is not known.
const NO_END: i64 = -1;

/// The number of a request, for its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallId(pub u64);

/// How far the members of the metadata log are, as its leader knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Quorum {
    /// The leader's term.
    pub term: u64,
    /// Index of the last committed entry.
    pub committed_index: u64,
    /// Who votes.
    pub voters: Vec<QuorumMember>,
    /// Who follows.
    pub observers: Vec<QuorumMember>,
}

/// One member of the metadata log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuorumMember {
    /// The member.
    pub member: RaftId,
    /// Index of the last entry that it is known to hold.
    pub last_index: u64,
}

/// A question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerRequest {
    /// Write this marker to these partitions.
    WriteMarkers {
        /// What.
        marker: Marker,
        /// Where.
        partitions: Vec<PartitionId>,
    },
    /// Does this partition belong to the transaction?
    Verify(Verification),
    /// Abort whatever is open in these partitions of a mirror that is being promoted; answered as
    /// [`PeerRequest::WriteMarkers`] is.
    AbortOpen {
        /// Their leader epochs must be above this one: a later one than any of the source's.
        above: LeaderEpoch,
        /// Where.
        partitions: Vec<PartitionId>,
    },
    /// Have you taken these partitions over? Who has, has fenced off all leaders before it.
    Leads {
        /// Under leader epochs above this one.
        above: LeaderEpoch,
        /// Which.
        partitions: Vec<PartitionId>,
    },
    /// How far are the members of the metadata log?
    DescribeQuorum,
    /// Have you applied the metadata log up to this entry? Answered when it is so, or after a while.
    Applied(u64),
    /// What of you stops or threatens writes?
    Health,
    /// Where do the logs of these partitions end that you lead?
    Ends(Vec<PartitionId>),
    /// What may I use of quotas that hold for the cluster? A `quota::message::Report` of the crate broker.
    QuotaReport(Bytes),
    /// Open, or keep, what a share group has of a partition.
    Share(Box<ShareQuestion>),
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerReply {
    /// What became of the marker in each partition, in the order of the question.
    MarkersWritten(Vec<MarkerOutcome>),
    /// Whether the partition belongs to the transaction.
    Verified(Result<(), VerifyError>),
    /// Whether the node serves each partition under such an epoch, in the order of the question.
    Leading(Vec<bool>),
    /// How far the members of the metadata log are, if the node leads it.
    Quorum(Option<Quorum>),
    /// Whether the node has applied the entry.
    HasApplied(bool),
    /// What the node finds of itself that stops or threatens writes: JSON, so that it grows.
    Health(Bytes),
    /// Where the log of each partition ends, in the order of the question; `None` of one that the node does not
    /// serve.
    Ends(Vec<Option<Offset>>),
    /// What the node may use, as `quota::message::Shares` of the crate broker; empty for no answer.
    QuotaShares(Bytes),
    /// It is kept, or why not; for who opens it, what it is.
    Share(ShareAnswer),
}

/// What became of a marker in one partition. The numbers are part of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum MarkerOutcome {
    /// It is committed, or was not needed any more.
    Written = 0,
    /// It may not be written; ask again, elsewhere if the partition has moved.
    Retry = 1,
}

/// A question or an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerMessage {
    /// A question.
    Request(CallId, PeerRequest),
    /// An answer.
    Reply(CallId, PeerReply),
}

impl PeerMessage {
    /// The message as bytes.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(64);
        match self {
            Self::Request(call, request) => put_request(&mut out, *call, request),
            Self::Reply(call, reply) => put_reply(&mut out, *call, reply),
        }
        out.freeze()
    }

    /// Reads a message.
    pub fn decode(bytes: Bytes) -> Result<Self, DecodeError> {
        let mut source = Source::new(bytes, "transaction message");
        let kind = source.u8()?;
        let call = CallId(source.u64()?);
        let message = match kind {
            WRITE_MARKERS => {
                let marker = marker(&mut source)?;
                let partitions = source.list(8, |source| Ok(PartitionId::new(source.u64()?)))?;
                Self::Request(call, PeerRequest::WriteMarkers { marker, partitions })
            }
            VERIFY => Self::Request(call, PeerRequest::Verify(verification(&mut source)?)),
            ABORT_OPEN => {
                let (above, partitions) = above(&mut source)?;
                Self::Request(call, PeerRequest::AbortOpen { above, partitions })
            }
            LEADS => {
                let (above, partitions) = above(&mut source)?;
                Self::Request(call, PeerRequest::Leads { above, partitions })
            }
            LEADING => Self::Reply(call, PeerReply::Leading(source.list(1, yes_or_no)?)),
            APPLIED => Self::Request(call, PeerRequest::Applied(source.u64()?)),
            HAS_APPLIED => Self::Reply(call, PeerReply::HasApplied(yes_or_no(&mut source)?)),
            DESCRIBE_QUORUM => Self::Request(call, PeerRequest::DescribeQuorum),
            HEALTH => Self::Request(call, PeerRequest::Health),
            FINDINGS => Self::Reply(call, PeerReply::Health(source.rest())),
            ENDS => {
                let partitions = source.list(8, |source| Ok(PartitionId::new(source.u64()?)))?;
                Self::Request(call, PeerRequest::Ends(partitions))
            }
            ENDS_ARE => Self::Reply(call, PeerReply::Ends(source.list(8, log_end)?)),
            QUOTA_REPORT => Self::Request(call, PeerRequest::QuotaReport(source.rest())),
            QUOTA_SHARES => Self::Reply(call, PeerReply::QuotaShares(source.rest())),
            SHARE => Self::Request(call, PeerRequest::Share(Box::new(posted(&mut source)?))),
            SHARE_KEPT => Self::Reply(call, PeerReply::Share(posted(&mut source)?)),
            QUORUM => Self::Reply(call, PeerReply::Quorum(quorum(&mut source)?)),
            MARKERS_WRITTEN => {
                let outcomes = source.list(1, outcome)?;
                Self::Reply(call, PeerReply::MarkersWritten(outcomes))
            }
            VERIFIED => {
                let result = match source.u8()? {
                    0 => Ok(()),
                    1 => Err(VerifyError::NotInTransaction),
                    2 => Err(VerifyError::UnknownProducer),
                    3 => Err(VerifyError::Fenced),
                    4 => Err(VerifyError::Concurrent),
                    5 => Err(VerifyError::Unavailable),
                    unknown => return Err(source.invalid("verdict", u64::from(unknown))),
                };
                Self::Reply(call, PeerReply::Verified(result))
            }
            unknown => return Err(source.invalid("kind", u64::from(unknown))),
        };
        source.finish()?;
        Ok(message)
    }
}

fn put_request(out: &mut BytesMut, call: CallId, request: &PeerRequest) {
    match request {
        PeerRequest::WriteMarkers { marker, partitions } => {
            begin(out, WRITE_MARKERS, call);
            put_marker(out, marker);
            put_partitions(out, partitions);
        }
        PeerRequest::Verify(verification) => {
            begin(out, VERIFY, call);
            put_verification(out, verification);
        }
        PeerRequest::AbortOpen { above, partitions } => {
            begin(out, ABORT_OPEN, call);
            put_above(out, *above, partitions);
        }
        PeerRequest::Leads { above, partitions } => {
            begin(out, LEADS, call);
            put_above(out, *above, partitions);
        }
        PeerRequest::DescribeQuorum => begin(out, DESCRIBE_QUORUM, call),
        PeerRequest::Applied(index) => {
            begin(out, APPLIED, call);
            out.put_u64(*index);
        }
        PeerRequest::Health => begin(out, HEALTH, call),
        PeerRequest::Ends(partitions) => {
            begin(out, ENDS, call);
            put_partitions(out, partitions);
        }
        PeerRequest::QuotaReport(report) => {
            begin(out, QUOTA_REPORT, call);
            out.put_slice(report);
        }
        PeerRequest::Share(question) => {
            begin(out, SHARE, call);
            post(out, question);
        }
    }
}

fn put_reply(out: &mut BytesMut, call: CallId, reply: &PeerReply) {
    match reply {
        PeerReply::MarkersWritten(outcomes) => {
            begin(out, MARKERS_WRITTEN, call);
            out.put_u32(outcomes.len() as u32);
            outcomes.iter().for_each(|outcome| out.put_u8(*outcome as u8));
        }
        PeerReply::Verified(result) => {
            begin(out, VERIFIED, call);
            out.put_u8(match result {
                Ok(()) => 0,
                Err(VerifyError::NotInTransaction) => 1,
                Err(VerifyError::UnknownProducer) => 2,
                Err(VerifyError::Fenced) => 3,
                Err(VerifyError::Concurrent) => 4,
                Err(VerifyError::Unavailable) => 5,
            });
        }
        PeerReply::Leading(leading) => {
            begin(out, LEADING, call);
            out.put_u32(leading.len() as u32);
            leading.iter().for_each(|leads| out.put_u8(u8::from(*leads)));
        }
        PeerReply::Quorum(quorum) => {
            begin(out, QUORUM, call);
            put_quorum(out, quorum.as_ref());
        }
        PeerReply::HasApplied(has) => {
            begin(out, HAS_APPLIED, call);
            out.put_u8(u8::from(*has));
        }
        PeerReply::Health(findings) => {
            begin(out, FINDINGS, call);
            out.put_slice(findings);
        }
        PeerReply::Ends(ends) => {
            begin(out, ENDS_ARE, call);
            out.put_u32(ends.len() as u32);
            ends.iter().for_each(|end| out.put_i64(end.map_or(NO_END, Offset::get)));
        }
        PeerReply::QuotaShares(shares) => {
            begin(out, QUOTA_SHARES, call);
            out.put_slice(shares);
        }
        PeerReply::Share(answer) => {
            begin(out, SHARE_KEPT, call);
            post(out, answer);
        }
    }
}

fn post<T: Serialize>(out: &mut BytesMut, value: &T) {
    let bytes = postcard::to_extend(value, Vec::new());
    out.put_slice(&bytes.expect("a message always encodes into memory"));
}

fn posted<T: DeserializeOwned>(source: &mut Source) -> Result<T, DecodeError> {
    let rest = source.rest();
    postcard::from_bytes(&rest).map_err(|_| source.invalid("message", rest.len() as u64))
}

fn put_partitions(out: &mut BytesMut, partitions: &[PartitionId]) {
    out.put_u32(partitions.len() as u32);
    partitions.iter().for_each(|partition| out.put_u64(partition.get()));
}

fn begin(out: &mut BytesMut, kind: u8, call: CallId) {
    out.put_u8(kind);
    out.put_u64(call.0);
}

fn put_above(out: &mut BytesMut, above: LeaderEpoch, partitions: &[PartitionId]) {
    out.put_i32(above.get());
    put_partitions(out, partitions);
}

fn above(source: &mut Source) -> Result<(LeaderEpoch, Vec<PartitionId>), DecodeError> {
    let above = LeaderEpoch::new(source.i32()?);
    Ok((above, source.list(8, |source| Ok(PartitionId::new(source.u64()?)))?))
}

fn log_end(source: &mut Source) -> Result<Option<Offset>, DecodeError> {
    let end = source.i64()?;
    Ok((end != NO_END).then(|| Offset::new(end)))
}

fn yes_or_no(source: &mut Source) -> Result<bool, DecodeError> {
    match source.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        unknown => Err(source.invalid("yes or no", u64::from(unknown))),
    }
}

fn put_marker(out: &mut BytesMut, marker: &Marker) {
    out.put_i64(marker.producer_id);
    out.put_i16(marker.producer_epoch);
    out.put_i32(marker.coordinator_epoch);
    out.put_u8(u8::from(marker.commit));
    put_version(out, marker.version);
    out.put_u64(marker.number);
}

fn marker(source: &mut Source) -> Result<Marker, DecodeError> {
    Ok(Marker {
        producer_id: source.i64()?,
        producer_epoch: source.u16()?.cast_signed(),
        coordinator_epoch: source.i32()?,
        commit: match source.u8()? {
            0 => false,
            1 => true,
            unknown => return Err(source.invalid("commit", u64::from(unknown))),
        },
        version: version(source)?,
        number: source.u64()?,
    })
}

fn put_verification(out: &mut BytesMut, verification: &Verification) {
    let InTransaction { transactional_id, producer_id, producer_epoch, version } =
        &verification.transaction;
    out.put_u64(verification.partition.get());
    out.put_i64(*producer_id);
    out.put_i16(*producer_epoch);
    put_version(out, *version);
    out.put_slice(transactional_id.as_bytes());
}

fn verification(source: &mut Source) -> Result<Verification, DecodeError> {
    let partition = PartitionId::new(source.u64()?);
    let producer_id = source.i64()?;
    let producer_epoch = source.u16()?.cast_signed();
    let version = version(source)?;
    let id = source.rest();
    let id = std::str::from_utf8(&id)
        .map_err(|_| source.invalid("transactional id", id.len() as u64))?;
    let transaction =
        InTransaction { transactional_id: id.into(), producer_id, producer_epoch, version };
    Ok(Verification { transaction, partition })
}

fn put_quorum(out: &mut BytesMut, quorum: Option<&Quorum>) {
    let Some(quorum) = quorum else { return out.put_u8(0) };
    out.put_u8(1);
    out.put_u64(quorum.term);
    out.put_u64(quorum.committed_index);
    for members in [&quorum.voters, &quorum.observers] {
        out.put_u32(members.len() as u32);
        for QuorumMember { member, last_index } in members {
            out.put_u64(member.to_raft());
            out.put_u64(*last_index);
        }
    }
}

fn quorum(source: &mut Source) -> Result<Option<Quorum>, DecodeError> {
    match source.u8()? {
        0 => return Ok(None),
        1 => {}
        unknown => return Err(source.invalid("quorum", u64::from(unknown))),
    }
    let member = |source: &mut Source| {
        let id = source.u64()?;
        let member = RaftId::from_raft(id).ok_or_else(|| source.invalid("member", id))?;
        Ok(QuorumMember { member, last_index: source.u64()? })
    };
    Ok(Some(Quorum {
        term: source.u64()?,
        committed_index: source.u64()?,
        voters: source.list(16, member)?,
        observers: source.list(16, member)?,
    }))
}

fn put_version(out: &mut BytesMut, version: TransactionVersion) {
    out.put_u8(match version {
        TransactionVersion::V1 => 1,
        TransactionVersion::V2 => 2,
    });
}

fn version(source: &mut Source) -> Result<TransactionVersion, DecodeError> {
    match source.u8()? {
        1 => Ok(TransactionVersion::V1),
        2 => Ok(TransactionVersion::V2),
        unknown => Err(source.invalid("transaction version", u64::from(unknown))),
    }
}

fn outcome(source: &mut Source) -> Result<MarkerOutcome, DecodeError> {
    match source.u8()? {
        0 => Ok(MarkerOutcome::Written),
        1 => Ok(MarkerOutcome::Retry),
        unknown => Err(source.invalid("outcome", u64::from(unknown))),
    }
}

#[cfg(test)]
mod tests {
    use meridian_base::id::{NodeId, TopicId};
    use meridian_broker::share::{Delivery, Delta, Opening, ShareAsk, ShareError, ShareImage};
    use proptest::prelude::*;

    use super::*;
    use crate::group::consumer::TopicPartition;

    fn versions() -> impl Strategy<Value = TransactionVersion> {
        prop_oneof![Just(TransactionVersion::V1), Just(TransactionVersion::V2)]
    }

    fn requests() -> impl Strategy<Value = PeerRequest> {
        let marker =
            (any::<i64>(), any::<i16>(), any::<i32>(), any::<bool>(), versions(), any::<u64>());
        let marker = marker.prop_map(
            |(producer_id, producer_epoch, coordinator_epoch, commit, version, number)| Marker {
                producer_id,
                producer_epoch,
                coordinator_epoch,
                commit,
                version,
                number,
            },
        );
        let partitions =
            prop::collection::vec(any::<u64>().prop_map(PartitionId::new), 0..5).boxed();
        let abort = (any::<i32>(), partitions.clone()).prop_map(|(above, partitions)| {
            PeerRequest::AbortOpen { above: LeaderEpoch::new(above), partitions }
        });
        let leads = (any::<i32>(), partitions.clone()).prop_map(|(above, partitions)| {
            PeerRequest::Leads { above: LeaderEpoch::new(above), partitions }
        });
        let write = (marker, partitions.clone())
            .prop_map(|(marker, partitions)| PeerRequest::WriteMarkers { marker, partitions });
        let verify = (".{0,9}", any::<i64>(), any::<i16>(), versions(), any::<u64>()).prop_map(
            |(id, producer_id, producer_epoch, version, partition)| {
                let transactional_id = id.as_str().into();
                let transaction =
                    InTransaction { transactional_id, producer_id, producer_epoch, version };
                PeerRequest::Verify(Verification {
                    transaction,
                    partition: PartitionId::new(partition),
                })
            },
        );
        let ends = partitions.prop_map(PeerRequest::Ends);
        let applied = any::<u64>().prop_map(PeerRequest::Applied);
        let bare = [PeerRequest::DescribeQuorum, PeerRequest::Health];
        let bytes = prop::collection::vec(any::<u8>(), 0..9);
        let quotas = bytes.prop_map(|it| PeerRequest::QuotaReport(it.into()));
        let bare = prop::sample::select(bare.to_vec());
        prop_oneof![write, verify, abort, leads, ends, applied, shares(), quotas, bare]
    }

    fn shares() -> impl Strategy<Value = PeerRequest> {
        let changed = (any::<i64>(), any::<i64>(), any::<u16>()).prop_map(|(start, end, count)| {
            (Offset::new(start), Offset::new(end), Delivery::Available(count))
        });
        let delta = (any::<u64>(), any::<i64>(), prop::collection::vec(changed, 0..4)).prop_map(
            |(number, start, changed)| Delta { number, start: Offset::new(start), changed },
        );
        let ask = prop_oneof![
            delta.prop_map(ShareAsk::Write),
            any::<i32>().prop_map(|epoch| ShareAsk::Open(LeaderEpoch::new(epoch))),
        ];
        let partition = TopicPartition { topic: TopicId::new(7), index: 3 };
        (".{0,9}", any::<u128>(), ask).prop_map(move |(group, opening, ask)| {
            let opening = Opening(opening);
            PeerRequest::Share(Box::new(ShareQuestion { group, partition, opening, ask }))
        })
    }

    fn quorums() -> impl Strategy<Value = Quorum> {
        let member = (any::<u32>(), any::<u64>()).prop_map(|(node, last_index)| QuorumMember {
            member: RaftId::first(NodeId::new(node)),
            last_index,
        });
        let members = prop::collection::vec(member, 0..4).boxed();
        (any::<u64>(), any::<u64>(), members.clone(), members).prop_map(
            |(term, committed_index, voters, observers)| Quorum {
                term,
                committed_index,
                voters,
                observers,
            },
        )
    }

    fn replies() -> impl Strategy<Value = PeerReply> {
        let outcome = prop_oneof![Just(MarkerOutcome::Written), Just(MarkerOutcome::Retry)];
        let verdict = prop_oneof![
            Just(Ok(())),
            Just(Err(VerifyError::NotInTransaction)),
            Just(Err(VerifyError::UnknownProducer)),
            Just(Err(VerifyError::Fenced)),
            Just(Err(VerifyError::Concurrent)),
            Just(Err(VerifyError::Unavailable)),
        ];
        prop_oneof![
            prop::collection::vec(outcome, 0..5).prop_map(PeerReply::MarkersWritten),
            verdict.prop_map(PeerReply::Verified),
            prop::collection::vec(any::<bool>(), 0..5).prop_map(PeerReply::Leading),
            prop::collection::vec(prop::option::of((0..i64::MAX).prop_map(Offset::new)), 0..5)
                .prop_map(PeerReply::Ends),
            prop::option::of(quorums()).prop_map(PeerReply::Quorum),
            Just(PeerReply::Share(Err(ShareError::FencedState))),
            any::<u64>().prop_map(|number| {
                PeerReply::Share(Ok(Some(ShareImage { number, ..Default::default() })))
            }),
            prop::collection::vec(any::<u8>(), 0..9).prop_map(|it| PeerReply::Health(it.into())),
            prop::collection::vec(any::<u8>(), 0..9)
                .prop_map(|it| PeerReply::QuotaShares(it.into())),
        ]
    }

    proptest! {
        #[test]
        fn what_is_sent_is_received(call: u64, request in requests(), reply in replies()) {
            let request = PeerMessage::Request(CallId(call), request);
            prop_assert_eq!(PeerMessage::decode(request.encode()), Ok(request));
            let reply = PeerMessage::Reply(CallId(call), reply);
            prop_assert_eq!(PeerMessage::decode(reply.encode()), Ok(reply));
        }

        #[test]
        fn decoding_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
            let _outcome = PeerMessage::decode(bytes.into());
        }
    }
}
