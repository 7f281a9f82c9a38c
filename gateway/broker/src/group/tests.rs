use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

type Outputs = Vec<Output<u32>>;

fn at(ms: u64) -> Instant {
    Instant::from_micros(ms * 1000)
}

fn limits() -> GroupLimits {
    GroupLimits {
        initial_rebalance_delay: Duration::ZERO,
        member_count_max: 5,
        image_size_bytes_max: 1000,
    }
}

fn join_as(member_id: Option<&str>, new_member_id: &str) -> Join {
    Join {
        member_id: member_id.map(str::to_owned),
        new_member_id: new_member_id.to_owned(),
        requires_member_id: false,
        instance_id: None,
        client_id: "client".to_owned(),
        client_host: "/127.0.0.1".to_owned(),
        session_timeout: Duration::from_secs(10),
        rebalance_timeout: Duration::from_secs(60),
        protocol_type: "consumer".to_owned(),
        protocols: vec![("range".to_owned(), Bytes::from_static(b"topics"))],
        can_skip_assignment: true,
    }
}

fn static_join(instance: &str, new_member_id: &str) -> Join {
    Join { instance_id: Some(instance.to_owned()), ..join_as(None, new_member_id) }
}

fn caller(member_id: &str, generation: i32) -> Caller {
    Caller { member_id: member_id.to_owned(), instance_id: None, generation }
}

fn sync_as(member_id: &str, generation: i32, assignments: &[(&str, &'static str)]) -> Sync {
    Sync {
        caller: caller(member_id, generation),
        protocol_type: None,
        protocol: None,
        assignments: assignments
            .iter()
            .map(|(id, text)| ((*id).to_owned(), Bytes::from_static(text.as_bytes())))
            .collect(),
    }
}

/// A group of `ids`, joined and synced, in its first generation of all of them.
fn stable(ids: &[&str]) -> Group<u32> {
    let mut group =
        Group::new(GroupLimits { initial_rebalance_delay: Duration::from_millis(1), ..limits() });
    let mut out = Vec::new();
    for id in ids {
        group.join(at(0), join_as(None, id), 0, &mut out);
    }
    group.tick(at(1), &mut out);
    assert_eq!(group.state(), GroupState::CompletingRebalance);
    let leader = group.leader().expect("has members").to_owned();
    let generation = group.generation();
    for id in ids.iter().filter(|id| **id != leader) {
        group.sync(at(1), sync_as(id, generation, &[]), 0, &mut out);
    }
    let assignments: Vec<(&str, &'static str)> = ids.iter().map(|id| (*id, "work")).collect();
    group.sync(at(1), sync_as(&leader, generation, &assignments), 0, &mut out);
    assert_eq!(group.state(), GroupState::Stable);
    group
}

#[test]
fn a_group_goes_on_where_its_last_coordinator_left_it() {
    let mut before = stable(&["a", "b"]);
    let image = before.take_changed().expect("an assignment is worth a record");
    assert_eq!(before.take_changed(), None);
    let mut group: Group<u32> = Group::restore(limits(), image.clone(), at(1000));
    assert_eq!(group.image(), image);
    assert_eq!((group.state(), group.generation()), (GroupState::Stable, before.generation()));
    let generation = group.generation();
    assert_eq!(group.heartbeat(at(1001), &caller("a", generation)), Ok(()));
    let stale = group.check_commit(at(1001), &caller("b", generation - 1));
    assert_eq!(stale, Err(GroupError::IllegalGeneration));
    let mut out = Vec::new();
    group.sync(at(1002), sync_as("b", generation, &[]), 7, &mut out);
    assert_eq!(out, [Output::Synced(7, Ok(Bytes::from_static(b"work")))]);

    // Sessions begin anew: whoever is not heard from is dropped when its own ends.
    group.tick(at(1000 + 9_999), &mut out);
    assert_eq!(group.members().count(), 2);
    group.tick(at(1000 + 10_001), &mut out);
    assert!(group.members().count() < 2);
}

/// Who looks at a group when its next deadline is due drops nobody late.
#[test]
fn the_next_deadline_is_when_something_ends() {
    let mut group = stable(&["a", "b"]);
    let mut out = Vec::new();
    assert_eq!(group.next_deadline(), Some(at(10_001)), "both sessions");
    group.heartbeat(at(5_000), &caller("a", group.generation())).expect("a member");
    group.tick(at(10_000), &mut out);
    assert_eq!(group.members().count(), 2);
    group.tick(at(10_001), &mut out);
    assert_eq!(group.members().map(|(id, _)| id).collect::<Vec<_>>(), ["a"]);
    // The rebalance ends when the other has joined, at the latest when its session is over.
    assert_eq!(group.next_deadline(), Some(at(15_000)));
    group.tick(at(15_000), &mut out);
    assert_eq!((group.members().count(), group.next_deadline()), (0, None));

    // A member that has not fetched its assignment has until the rebalance is over.
    let mut group = Group::new(limits());
    let quick = Join { rebalance_timeout: Duration::from_secs(3), ..join_as(None, "a") };
    group.join(at(0), quick, 1, &mut out);
    group.tick(at(1), &mut out);
    assert_eq!(group.next_deadline(), Some(at(3_000)));
    group.tick(at(3_000), &mut out);
    assert_eq!(group.members().count(), 0);
}

/// What is remembered of a group is one record: half of it for what the members want, half for what they are to do.
#[test]
fn a_group_that_no_record_holds_takes_no_member_more() {
    let join = |id| Join {
        protocols: vec![("range".to_owned(), Bytes::from(vec![7; 200]))],
        ..join_as(None, id)
    };
    let mut group = Group::new(limits());
    let mut out = Vec::new();
    group.join(at(0), join("a"), 1, &mut out);
    out.clear();
    group.join(at(1), join("b"), 2, &mut out);
    assert_eq!(out, [Output::Joined(2, Err(GroupError::TooLarge))]);
    assert_eq!(group.members().count(), 1);
    let more = Join {
        protocols: vec![("range".to_owned(), Bytes::from(vec![7; 600]))],
        ..join_as(Some("a"), "a")
    };
    out.clear();
    group.join(at(2), more, 3, &mut out);
    assert!(out.contains(&Output::Joined(3, Err(GroupError::TooLarge))), "{out:?}");
}

#[test]
fn an_assignment_that_no_record_holds_is_refused_to_all() {
    let mut group = Group::new(limits());
    let mut out = Vec::new();
    group.join(at(0), join_as(None, "a"), 1, &mut out);
    group.tick(at(1), &mut out);
    assert_eq!(group.state(), GroupState::CompletingRebalance);
    let large: &'static str = Box::leak("x".repeat(501).into_boxed_str());
    out.clear();
    group.sync(at(2), sync_as("a", group.generation(), &[("a", large)]), 2, &mut out);
    assert_eq!(out, [Output::Synced(2, Err(GroupError::TooLarge))]);
    assert_eq!(group.state(), GroupState::PreparingRebalance);
    assert_eq!(group.take_changed(), None, "nothing is written");
}

#[test]
fn an_empty_group_keeps_its_generation() {
    let mut before = stable(&["a"]);
    let mut out = Vec::new();
    before.leave(at(2), "a", None, &mut out).unwrap();
    let image = before.take_changed().expect("its end is worth a record");
    let mut group: Group<u32> = Group::restore(limits(), image, at(5));
    assert_eq!((group.state(), group.generation()), (GroupState::Empty, before.generation()));
    let stranger = Caller { member_id: String::new(), instance_id: None, generation: -1 };
    assert_eq!(group.check_commit(at(6), &stranger), Ok(()));
}

#[test]
fn a_static_member_that_came_back_is_remembered_under_its_new_id() {
    let mut group = Group::new(limits());
    let mut out = Vec::new();
    group.join(at(0), static_join("i", "a"), 0, &mut out);
    group.tick(at(1), &mut out);
    let generation = group.generation();
    let leader = Caller { instance_id: Some("i".to_owned()), ..caller("a", generation) };
    let sync = Sync { caller: leader, ..sync_as("a", generation, &[("a", "work")]) };
    group.sync(at(1), sync, 1, &mut out);
    assert!(group.take_changed().is_some());
    group.join(at(2), static_join("i", "b"), 2, &mut out);
    let image = group.take_changed().expect("the new id is worth a record");
    assert_eq!(image.members[0].member_id, "b");
    assert_eq!(image.members[0].assignment, b"work");
    let mut next: Group<u32> = Group::restore(limits(), image, at(3));
    let old = Caller { instance_id: Some("i".to_owned()), ..caller("a", generation) };
    assert_eq!(next.heartbeat(at(4), &old), Err(GroupError::FencedInstance));
}

fn joined(outputs: &Outputs, waiter: u32) -> &Result<Joined, GroupError> {
    let found = outputs.iter().find_map(|output| match output {
        Output::Joined(who, result) if *who == waiter => Some(result),
        _ => None,
    });
    found.unwrap_or_else(|| panic!("{waiter} was not answered: {outputs:?}"))
}

fn synced(outputs: &Outputs, waiter: u32) -> &Result<Bytes, GroupError> {
    let found = outputs.iter().find_map(|output| match output {
        Output::Synced(who, result) if *who == waiter => Some(result),
        _ => None,
    });
    found.unwrap_or_else(|| panic!("{waiter} was not answered: {outputs:?}"))
}

#[test]
fn an_empty_group_waits_for_more_members_and_then_assigns() {
    let delay = Duration::from_secs(3);
    let mut group = Group::new(GroupLimits { initial_rebalance_delay: delay, ..limits() });
    let mut out = Vec::new();
    group.join(at(0), join_as(None, "a"), 1, &mut out);
    group.join(at(2000), join_as(None, "b"), 2, &mut out);
    group.tick(at(4999), &mut out);
    assert_eq!(out, []);
    group.tick(at(5000), &mut out);
    let leader = joined(&out, 1).clone().unwrap();
    assert_eq!((leader.leader.as_str(), leader.generation), ("a", 1));
    assert_eq!(leader.members.len(), 2);
    let follower = joined(&out, 2).clone().unwrap();
    assert_eq!((follower.leader.as_str(), follower.members.len()), ("a", 0));

    out.clear();
    group.sync(at(5001), sync_as("b", 1, &[]), 2, &mut out);
    assert_eq!(out, [], "the leader has not assigned yet");
    group.sync(at(5002), sync_as("a", 1, &[("a", "one"), ("b", "two"), ("x", "?")]), 1, &mut out);
    assert_eq!(synced(&out, 1), &Ok(Bytes::from_static(b"one")));
    assert_eq!(synced(&out, 2), &Ok(Bytes::from_static(b"two")));
    assert_eq!(group.state(), GroupState::Stable);
}

#[test]
fn waiting_for_more_members_ends_with_the_rebalance_timeout() {
    let delay = Duration::from_secs(40);
    let mut group = Group::new(GroupLimits { initial_rebalance_delay: delay, ..limits() });
    let mut out = Vec::new();
    group.join(at(0), join_as(None, "a"), 1, &mut out);
    group.join(at(30_000), join_as(None, "b"), 2, &mut out);
    group.tick(at(59_999), &mut out);
    assert_eq!(out, []);
    group.tick(at(60_000), &mut out);
    assert_eq!(out.len(), 2);
}

#[test]
fn a_member_without_id_is_given_one_and_holds_the_rebalance_up_until_it_lapses() {
    let mut group = stable(&["a"]);
    let mut out = Vec::new();
    let join = Join { requires_member_id: true, ..join_as(None, "b") };
    group.join(at(10), join, 7, &mut out);
    let required = GroupError::MemberIdRequired { member_id: "b".to_owned() };
    assert_eq!(joined(&out, 7), &Err(required));
    assert_eq!(group.state(), GroupState::Stable, "nothing happens before it is back");

    group.join(at(20), join_as(Some("b"), "unused"), 8, &mut out);
    assert_eq!(group.state(), GroupState::PreparingRebalance);
    out.clear();
    group.join(at(30), join_as(Some("a"), "unused"), 9, &mut out);
    assert_eq!(joined(&out, 8).as_ref().unwrap().generation, 2);

    let mut group = stable(&["a"]);
    let join = Join { requires_member_id: true, ..join_as(None, "b") };
    group.join(at(10), join, 7, &mut out);
    out.clear();
    group.join(at(20), join_as(Some("a"), "unused"), 9, &mut out);
    group.tick(at(10_009), &mut out);
    assert_eq!(out, []);
    group.tick(at(10_010), &mut out);
    assert_eq!(joined(&out, 9).as_ref().unwrap().members.len(), 1);
}

#[test]
fn strangers_are_turned_away() {
    let mut group = stable(&["a"]);
    let mut out = Vec::new();
    group.join(at(10), join_as(Some("ghost"), "unused"), 1, &mut out);
    assert_eq!(joined(&out, 1), &Err(GroupError::UnknownMember));
    let generation = group.generation();
    assert_eq!(
        group.heartbeat(at(10), &caller("ghost", generation)),
        Err(GroupError::UnknownMember)
    );
    let stale = caller("a", generation - 1);
    assert_eq!(group.heartbeat(at(10), &stale), Err(GroupError::IllegalGeneration));
    assert_eq!(group.check_commit(at(10), &stale), Err(GroupError::IllegalGeneration));
    let nobody = caller("", -1);
    assert_eq!(group.check_commit(at(10), &nobody), Err(GroupError::UnknownMember));
    assert_eq!(group.check_commit(at(10), &caller("a", generation)), Ok(()));
    assert_eq!(Group::<u32>::new(limits()).check_commit(at(0), &nobody), Ok(()));
}

#[test]
fn members_need_a_protocol_in_common() {
    let mut group = stable(&["a"]);
    let mut out = Vec::new();
    let other = |protocol_type: &str, names: &[&str]| Join {
        protocol_type: protocol_type.to_owned(),
        protocols: names.iter().map(|name| ((*name).to_owned(), Bytes::new())).collect(),
        ..join_as(None, "b")
    };
    for join in
        [other("consumer", &["sticky"]), other("connect", &["range"]), other("consumer", &[])]
    {
        out.clear();
        group.join(at(10), join, 1, &mut out);
        assert_eq!(joined(&out, 1), &Err(GroupError::InconsistentProtocol));
    }
    out.clear();
    group.join(at(10), other("consumer", &["sticky", "range"]), 1, &mut out);
    group.join(at(11), join_as(Some("a"), "unused"), 2, &mut out);
    assert_eq!(joined(&out, 1).as_ref().unwrap().protocol, "range");
}

#[test]
fn a_full_group_takes_nobody() {
    let mut group = stable(&["a", "b", "c", "d", "e"]);
    let mut out = Vec::new();
    for requires_member_id in [false, true] {
        out.clear();
        let join = Join { requires_member_id, ..join_as(None, "f") };
        group.join(at(10), join, 1, &mut out);
        assert_eq!(joined(&out, 1), &Err(GroupError::TooManyMembers));
    }
}

#[test]
fn a_rebalance_tells_members_by_heartbeat_and_drops_those_that_do_not_come() {
    let mut group = stable(&["a", "b"]);
    let mut out = Vec::new();
    group.join(at(100), join_as(None, "c"), 3, &mut out);
    assert_eq!(group.heartbeat(at(200), &caller("a", 1)), Err(GroupError::RebalanceInProgress));
    group.join(at(300), join_as(Some("a"), "unused"), 1, &mut out);
    // b goes on with heartbeats, but does not join.
    for ms in (1000..60_000).step_by(5000) {
        let _told = group.heartbeat(at(ms), &caller("b", 1));
        group.tick(at(ms), &mut out);
    }
    assert_eq!(out, []);
    group.tick(at(60_100), &mut out);
    assert_eq!(joined(&out, 1).as_ref().unwrap().members.len(), 2);
    assert_eq!(group.heartbeat(at(60_200), &caller("b", 1)), Err(GroupError::UnknownMember));
}

#[test]
fn silence_ends_a_membership_but_not_while_waiting() {
    let mut group = stable(&["a", "b"]);
    let mut out = Vec::new();
    assert_eq!(group.heartbeat(at(9_000), &caller("a", 1)), Ok(()));
    group.tick(at(10_001), &mut out);
    assert_eq!(group.state(), GroupState::PreparingRebalance, "b was silent");
    group.join(at(10_100), join_as(Some("a"), "unused"), 1, &mut out);
    assert_eq!(joined(&out, 1).as_ref().unwrap().generation, 2);
    out.clear();

    let mut group = stable(&["a", "b"]);
    group.join(at(100), join_as(Some("a"), "unused"), 1, &mut out);
    for ms in [9_000, 18_000, 27_000] {
        let _told = group.heartbeat(at(ms), &caller("b", 1));
        group.tick(at(ms + 1), &mut out);
    }
    assert_eq!(out, [], "a waits, and is not dropped for that");
}

#[test]
fn leaving_starts_a_rebalance_and_the_last_empties_the_group() {
    let mut group = stable(&["a", "b"]);
    let mut out = Vec::new();
    assert_eq!(group.leave(at(10), "a", None, &mut out), Ok("a".to_owned()));
    assert_eq!(group.leave(at(10), "a", None, &mut out), Err(GroupError::UnknownMember));
    assert_eq!(group.state(), GroupState::PreparingRebalance);
    assert_eq!(group.leave(at(20), "b", None, &mut out), Ok("b".to_owned()));
    assert_eq!(group.state(), GroupState::Empty);
    assert!(group.is_vacant() && group.leader().is_none());
    assert_eq!(out, []);
}

#[test]
fn whoever_waits_for_an_assignment_learns_of_the_next_rebalance() {
    let mut group = stable(&["a", "b"]);
    let mut out = Vec::new();
    group.join(at(10), join_as(Some("a"), "unused"), 1, &mut out);
    group.join(at(10), join_as(Some("b"), "unused"), 2, &mut out);
    group.sync(at(20), sync_as("b", 2, &[]), 3, &mut out);
    out.clear();
    group.join(at(30), join_as(None, "c"), 4, &mut out);
    assert_eq!(synced(&out, 3), &Err(GroupError::RebalanceInProgress));
    out.clear();
    group.sync(at(40), sync_as("a", 2, &[]), 5, &mut out);
    assert_eq!(synced(&out, 5), &Err(GroupError::RebalanceInProgress));
}

#[test]
fn a_leader_that_never_assigns_is_dropped() {
    let mut group = stable(&["a", "b"]);
    let mut out = Vec::new();
    group.join(at(10), join_as(Some("a"), "unused"), 1, &mut out);
    group.join(at(10), join_as(Some("b"), "unused"), 2, &mut out);
    group.sync(at(20), sync_as("b", 2, &[]), 3, &mut out);
    out.clear();
    for ms in (5_000..60_000).step_by(5_000) {
        let _alive = group.heartbeat(at(ms), &caller("a", 2));
        group.tick(at(ms), &mut out);
    }
    assert_eq!(out, []);
    group.tick(at(60_010), &mut out);
    assert_eq!(synced(&out, 3), &Err(GroupError::RebalanceInProgress));
    group.join(at(60_020), join_as(Some("b"), "unused"), 4, &mut out);
    assert_eq!(joined(&out, 4).as_ref().unwrap().leader, "b");
}

#[test]
fn a_lost_answer_is_given_again() {
    let mut group = stable(&["a", "b"]);
    let mut out = Vec::new();
    // A follower whose join changes nothing stays in its generation, a leader makes a new one.
    group.join(at(10), join_as(Some("b"), "unused"), 1, &mut out);
    assert_eq!(joined(&out, 1).as_ref().unwrap().generation, 1);
    group.sync(at(11), sync_as("b", 1, &[]), 2, &mut out);
    assert_eq!(synced(&out, 2), &Ok(Bytes::from_static(b"work")));
    group.join(at(12), join_as(Some("a"), "unused"), 3, &mut out);
    assert_eq!(group.state(), GroupState::PreparingRebalance);
    // A second join of the same member takes the place of the first.
    group.join(at(13), join_as(Some("a"), "unused"), 4, &mut out);
    assert_eq!(joined(&out, 3), &Err(GroupError::RebalanceInProgress));
}

#[test]
fn a_sync_must_agree_on_the_protocol() {
    let mut group = stable(&["a"]);
    let mut out = Vec::new();
    for (protocol_type, protocol) in [(Some("connect"), None), (None, Some("sticky"))] {
        out.clear();
        let sync = Sync {
            protocol_type: protocol_type.map(str::to_owned),
            protocol: protocol.map(str::to_owned),
            ..sync_as("a", 1, &[])
        };
        group.sync(at(10), sync, 1, &mut out);
        assert_eq!(synced(&out, 1), &Err(GroupError::InconsistentProtocol));
    }
}

#[test]
fn a_static_member_comes_back_without_a_rebalance_and_fences_its_former_self() {
    let mut group = Group::new(limits());
    let mut out = Vec::new();
    group.join(at(0), static_join("node-1", "a1"), 1, &mut out);
    group.sync(at(1), sync_as("a1", 1, &[("a1", "work")]), 2, &mut out);
    assert_eq!(group.state(), GroupState::Stable);

    out.clear();
    group.join(at(100), static_join("node-1", "a2"), 3, &mut out);
    let back = joined(&out, 3).clone().unwrap();
    assert_eq!((back.generation, back.skip_assignment), (1, true));
    assert_eq!((back.member_id.as_str(), back.leader.as_str()), ("a2", "a2"));
    let as_node_1 = |id: &str| Caller { instance_id: Some("node-1".to_owned()), ..caller(id, 1) };
    assert_eq!(group.heartbeat(at(101), &as_node_1("a1")), Err(GroupError::FencedInstance));
    assert_eq!(group.heartbeat(at(101), &as_node_1("a2")), Ok(()));
    group.sync(at(102), sync_as("a2", 1, &[]), 4, &mut out);
    assert_eq!(synced(&out, 4), &Ok(Bytes::from_static(b"work")));

    // One that does not understand `skip_assignment` is told that another leads.
    out.clear();
    let old_client = Join { can_skip_assignment: false, ..static_join("node-1", "a3") };
    group.join(at(200), old_client, 5, &mut out);
    assert_eq!(joined(&out, 5).as_ref().unwrap().leader, "a2");

    // One with another subscription makes a rebalance.
    out.clear();
    let changed = Join {
        protocols: vec![("range".to_owned(), Bytes::from_static(b"other topics"))],
        ..static_join("node-1", "a4")
    };
    group.join(at(300), changed, 6, &mut out);
    assert_eq!(joined(&out, 6).as_ref().unwrap().generation, 2);
    assert_eq!(group.leave(at(400), "", Some("node-1"), &mut out), Ok("a4".to_owned()));
    assert_eq!(group.leave(at(400), "", Some("node-1"), &mut out), Err(GroupError::UnknownMember));
}

#[test]
fn an_absent_static_member_keeps_its_place_until_its_session_ends() {
    let mut group = Group::new(limits());
    let mut out = Vec::new();
    group.join(at(0), static_join("node-1", "a"), 1, &mut out);
    group.sync(at(1), sync_as("a", 1, &[("a", "work")]), 2, &mut out);
    let patient = Join {
        session_timeout: Duration::from_secs(300),
        rebalance_timeout: Duration::from_secs(5),
        ..static_join("node-2", "b")
    };
    group.join(at(2), patient, 3, &mut out);
    group.join(
        at(3),
        Join { member_id: Some("a".to_owned()), ..static_join("node-1", "") },
        4,
        &mut out,
    );
    group.sync(at(4), sync_as("b", 2, &[]), 5, &mut out);
    group.sync(at(4), sync_as("a", 2, &[("a", "one"), ("b", "two")]), 6, &mut out);
    assert_eq!(group.state(), GroupState::Stable);

    // b is away while the group rebalances: it is still a member of the next generation.
    let short = Join {
        rebalance_timeout: Duration::from_secs(5),
        member_id: Some("a".to_owned()),
        ..static_join("node-1", "")
    };
    out.clear();
    group.join(at(100), short, 7, &mut out);
    group.tick(at(60_100), &mut out);
    let leader = joined(&out, 7).clone().unwrap();
    let members: Vec<&str> = leader.members.iter().map(|(id, ..)| id.as_str()).collect();
    assert_eq!(members, ["a", "b"]);
}

#[derive(Clone, Debug)]
enum Step {
    Join { member: u8, changed: bool },
    JoinStatic { instance: u8 },
    Sync { member: u8 },
    Heartbeat { member: u8 },
    Leave { member: u8 },
    Wait { ms: u16 },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0u8..6, any::<bool>()).prop_map(|(member, changed)| Step::Join { member, changed }),
        1 => (0u8..2).prop_map(|instance| Step::JoinStatic { instance }),
        4 => (0u8..6).prop_map(|member| Step::Sync { member }),
        2 => (0u8..6).prop_map(|member| Step::Heartbeat { member }),
        1 => (0u8..6).prop_map(|member| Step::Leave { member }),
        2 => (0u16..30_000).prop_map(|ms| Step::Wait { ms }),
    ];
    prop::collection::vec(step, 1..80)
}

/// Clients that know what they were told last.
#[derive(Default)]
struct World {
    now_ms: u64,
    next_id: u32,
    waiters: u32,
    known: BTreeMap<u8, Joined>,
    asked: BTreeMap<u32, u8>,
    answered: BTreeMap<u32, usize>,
}

impl World {
    fn waiter(&mut self, member: u8) -> u32 {
        self.waiters += 1;
        self.asked.insert(self.waiters, member);
        self.waiters
    }

    fn run(&mut self, group: &mut Group<u32>, step: &Step, out: &mut Outputs) {
        let now = at(self.now_ms);
        self.next_id += 1;
        let new_id = format!("m{:04}", self.next_id);
        match step {
            Step::Join { member, changed } => {
                let id = self.known.get(member).map(|joined| joined.member_id.clone());
                let waiter = self.waiter(*member);
                let mut join = join_as(id.as_deref(), &new_id);
                if *changed {
                    join.protocols[0].1 = Bytes::from(new_id);
                }
                group.join(now, join, waiter, out);
            }
            Step::JoinStatic { instance } => {
                let waiter = self.waiter(10 + instance);
                group.join(now, static_join(&format!("node-{instance}"), &new_id), waiter, out);
            }
            Step::Sync { member } => {
                let Some(joined) = self.known.get(member).cloned() else { return };
                let waiter = self.waiter(*member);
                let assignments =
                    joined.members.iter().map(|(id, ..)| (id.clone(), Bytes::from_static(b"w")));
                let sync = Sync {
                    assignments: assignments.collect(),
                    ..sync_as(&joined.member_id, joined.generation, &[])
                };
                group.sync(now, sync, waiter, out);
            }
            Step::Heartbeat { member } => {
                if let Some(joined) = self.known.get(member) {
                    let _told = group.heartbeat(now, &caller(&joined.member_id, joined.generation));
                }
            }
            Step::Leave { member } => {
                if let Some(joined) = self.known.remove(member) {
                    let _told = group.leave(now, &joined.member_id, None, out);
                }
            }
            Step::Wait { ms } => {
                self.now_ms += u64::from(*ms);
                group.tick(at(self.now_ms), out);
            }
        }
    }

    fn hear(&mut self, out: Outputs) {
        for output in out {
            let (waiter, joined) = match output {
                Output::Joined(waiter, Ok(joined)) => (waiter, Some(Some(joined))),
                Output::Joined(waiter, Err(_)) => (waiter, Some(None)),
                Output::Synced(waiter, _) => (waiter, None),
            };
            *self.answered.entry(waiter).or_default() += 1;
            let member = self.asked[&waiter];
            match joined {
                Some(Some(joined)) => drop(self.known.insert(member, joined)),
                Some(None) => drop(self.known.remove(&member)),
                None => {}
            }
        }
    }
}

proptest! {
    #[test]
    fn a_group_keeps_its_promises(steps in steps()) {
        let mut group = Group::new(limits());
        let mut world = World::default();
        let mut generation = group.generation();
        for step in &steps {
            let mut out = Vec::new();
            world.run(&mut group, step, &mut out);
            for output in &out {
                if let Output::Joined(_, Ok(joined)) = output
                    && !joined.members.is_empty()
                {
                    prop_assert_eq!(&joined.leader, &joined.member_id, "only leaders see members");
                    prop_assert!(joined.members.iter().any(|(id, ..)| *id == joined.leader));
                }
            }
            world.hear(out);
            prop_assert!(group.generation() >= generation, "generations only grow");
            generation = group.generation();
            let ids: Vec<&str> = group.members().map(|(id, _)| id).collect();
            match group.state() {
                GroupState::Empty => prop_assert!(ids.is_empty()),
                GroupState::PreparingRebalance => {}
                GroupState::CompletingRebalance => {
                    prop_assert!(group.leader().is_some_and(|leader| ids.contains(&leader)));
                }
                GroupState::Stable => {
                    prop_assert!(group.leader().is_some_and(|leader| ids.contains(&leader)));
                    for (id, member) in group.members() {
                        prop_assert_eq!(&member.assignment[..], b"w", "{} has no assignment", id);
                    }
                }
            }
            prop_assert!(ids.len() <= limits().member_count_max);
        }
        // Whoever asked is answered once, at the latest when all time-outs have passed.
        for _ in 0..20 {
            let mut out = Vec::new();
            world.now_ms += 120_000;
            group.tick(at(world.now_ms), &mut out);
            world.hear(out);
        }
        for waiter in 1..=world.waiters {
            prop_assert_eq!(world.answered.get(&waiter), Some(&1), "waiter {}", waiter);
        }
        prop_assert_eq!(group.state(), GroupState::Empty);
    }
}
