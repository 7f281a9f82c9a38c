//! Fuzz targets of this crate: what members send and what the disk holds. See
//! [`meridian_base::fuzz`].

use meridian_base::env::memory::MemoryDisk;
use meridian_base::fuzz::Target;
use meridian_base::id::{ClusterId, NodeId, TopicId};
use meridian_base::topology::{Datacenter, Geometry, Rack};
use protobuf::Message as _;
use raft::eraftpb::{ConfState, Message};

use crate::command::{
    Command, ConfigChange, Endpoint, FeatureLevel, NodeRegistration, Proposal, RequestId, Roles,
};
use crate::membership::RaftId;
use crate::snapshot;
use crate::state::Metadata;
use crate::{log, store};

/// All targets.
pub const TARGETS: &[Target] = &[
    Target { name: "raft_proposal", run: proposal, seeds: proposal_seeds },
    Target { name: "raft_commands", run: commands, seeds: || vec![script(&a_history())] },
    Target { name: "metadata_snapshot", run: whole_state, seeds: state_seeds },
    Target { name: "metadata_store", run: store::fuzz::position, seeds: store::fuzz::seeds },
    Target { name: "raft_message", run: message, seeds: message_seeds },
    Target { name: "raft_log", run: log::fuzz::frames, seeds: log::fuzz::frame_seeds },
    Target { name: "raft_log_files", run: log::fuzz::files, seeds: log::fuzz::file_seeds },
];

fn proposal(data: &[u8]) {
    let Ok(proposal) = Proposal::decode(data) else { return };
    assert_eq!(Proposal::decode(&proposal.encode()), Ok(proposal));
}

/// Proposals, each behind its length, are applied to a state, as those of a log.
fn commands(data: &[u8]) {
    let mut metadata = Metadata::default();
    let mut rest = data;
    let mut index = 0;
    while let Some(([high, low], tail)) = rest.split_first_chunk() {
        let size_bytes = usize::from(u16::from_be_bytes([*high, *low])).min(tail.len());
        let (bytes, after) = tail.split_at(size_bytes);
        rest = after;
        if let Ok(proposal) = Proposal::decode(bytes) {
            index += 1;
            metadata.apply(index, &proposal);
        }
    }
    let encoded = snapshot::encode(&metadata);
    assert_eq!(snapshot::decode(&encoded).as_ref(), Ok(&metadata), "what was applied is kept");
}

fn whole_state(data: &[u8]) {
    let Ok(metadata) = snapshot::decode(data) else { return };
    let encoded = snapshot::encode(&metadata);
    assert_eq!(snapshot::decode(&encoded), Ok(metadata));
}

fn message(data: &[u8]) {
    let Ok(message) = Message::parse_from_bytes(data) else { return };
    let _ = RaftId::from_raft(message.from);
}

fn proposal_of(index: u128, command: Command) -> Proposal {
    Proposal { request_id: RequestId::new(index), command }
}

/// A cluster of one with a topic.
pub(crate) fn a_history() -> Vec<Proposal> {
    let endpoint = |port| Endpoint { host: "localhost".to_owned(), port };
    let node = NodeId::new(1);
    let registration = NodeRegistration {
        node,
        datacenter: Datacenter("A".to_owned()),
        rack: Rack("1".to_owned()),
        roles: Roles::ALL,
        kafka: endpoint(9092),
        peer: endpoint(9192),
        admin: endpoint(9292),
        binary_version: "0.1.0".to_owned(),
        feature_level_min: FeatureLevel::new(1),
        feature_level_max: FeatureLevel::new(2),
    };
    let mount = Command::MountDisk {
        node,
        incarnation: meridian_base::id::Incarnation::new(0),
        mount_epoch: crate::command::MountEpoch::new(1),
        found_data: false,
    };
    let topic = Command::CreateTopic {
        topic: TopicId::new(77),
        name: "orders".to_owned(),
        leaders: vec![node, node],
        configs: vec![ConfigChange {
            name: "retention.ms".to_owned(),
            value: Some("1000".to_owned()),
        }],
        internal: false,
    };
    let cluster_id = ClusterId::from_entropy(5);
    let commands = [
        Command::Bootstrap { cluster_id, geometry: Geometry::None },
        Command::RegisterNode(registration),
        mount,
        topic,
    ];
    (1..).zip(commands).map(|(index, command)| proposal_of(index, command)).collect()
}

fn script(proposals: &[Proposal]) -> Vec<u8> {
    let mut all = Vec::new();
    for proposal in proposals {
        let bytes = proposal.encode();
        all.extend_from_slice(&(bytes.len() as u16).to_be_bytes());
        all.extend_from_slice(&bytes);
    }
    all
}

fn proposal_seeds() -> Vec<Vec<u8>> {
    a_history().iter().map(Proposal::encode).collect()
}

fn state_seeds() -> Vec<Vec<u8>> {
    let mut metadata = Metadata::default();
    for (index, proposal) in (1..).zip(&a_history()) {
        metadata.apply(index, proposal);
    }
    vec![snapshot::encode(&metadata), snapshot::encode(&Metadata::default())]
}

fn message_seeds() -> Vec<Vec<u8>> {
    let message = Message {
        from: RaftId::first(NodeId::new(1)).to_raft(),
        to: RaftId::first(NodeId::new(2)).to_raft(),
        term: 3,
        index: 9,
        ..Message::default()
    };
    let mut with_snapshot = message.clone();
    let mut conf_state = ConfState::default();
    conf_state.set_voters(vec![1, 2, 3]);
    with_snapshot.mut_snapshot().mut_metadata().set_conf_state(conf_state);
    [message, with_snapshot].iter().filter_map(|message| message.write_to_bytes().ok()).collect()
}

/// A disk with these files.
pub(crate) fn disk_with(files: &[(String, &[u8])]) -> MemoryDisk {
    use meridian_base::env::Disk as _;
    let mut disk = MemoryDisk::new(1);
    for (name, contents) in files {
        let written = disk
            .create(name, contents.len() as u64)
            .and_then(|()| disk.write_at(name, 0, &[std::io::IoSlice::new(contents)]));
        assert_eq!(written, Ok(()));
    }
    disk
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_bears_any_bytes() {
        meridian_base::fuzz::exercise_all(TARGETS, 1500);
    }
}
