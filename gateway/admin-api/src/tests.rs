//! The JSON of each request and answer: an interface, so a rename or a loss of a field fails here.

mod clusters;
mod mirrors;

use std::any::type_name;
use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::*;
use crate::methods::{NAMES, TYPES};

/// The types whose JSON was looked at.
#[derive(Default)]
struct Seen(BTreeSet<&'static str>);

impl Seen {
    /// A value has this JSON, and is read from it.
    #[track_caller]
    fn add<T: Serialize + DeserializeOwned>(&mut self, value: &T, expected: Value) {
        let told = serde_json::to_value(value).expect("JSON");
        assert_eq!(told, expected, "{}", type_name::<T>());
        let read: T = serde_json::from_value(expected.clone()).expect("its own JSON");
        assert_eq!(serde_json::to_value(&read).expect("JSON"), expected);
        self.0.insert(type_name::<T>());
    }

    /// As [`Seen::add`], for an answer whose new fields are passed on, of a method that may give a list of such.
    #[track_caller]
    fn add_open<T: Serialize + DeserializeOwned>(&mut self, value: &T, mut expected: Value) {
        self.add(value, expected.clone());
        expected["of_a_newer_node"] = json!([1, null]);
        let read: T = serde_json::from_value(expected.clone()).expect("a newer node's JSON");
        assert_eq!(serde_json::to_value(&read).expect("JSON"), expected);
        self.0.insert(type_name::<Vec<T>>());
    }
}

#[test]
fn every_request_and_answer_has_the_json_that_it_always_had() {
    let mut seen = Seen::default();
    seen.add(&NoArguments {}, json!({}));
    seen.add(&Done {}, json!({}));
    seen.add(&OfTopic { topic: "t".to_owned() }, json!({"topic": "t"}));
    seen.add(&OfLink { link: "l".to_owned() }, json!({"link": "l"}));
    seen.add(&OfNode { node: 4 }, json!({"node": 4}));
    clusters::access(&mut seen);
    clusters::clients(&mut seen);
    clusters::quotas(&mut seen);
    clusters::status(&mut seen);
    clusters::nodes(&mut seen);
    clusters::topics(&mut seen);
    mirrors::links(&mut seen);
    mirrors::grants(&mut seen);
    mirrors::mirrors(&mut seen);
    mirrors::rules(&mut seen);
    mirrors::audits(&mut seen);
    mirrors::succession(&mut seen);
    mirrors::rejoins(&mut seen);
    mirrors::leases(&mut seen);
    for (name, types) in TYPES {
        for of in types {
            assert!(seen.0.contains(of()), "{name}: nothing holds the JSON of {}", of());
        }
    }
}

#[test]
fn methods_have_names_of_their_own() {
    assert_eq!(NAMES.iter().collect::<BTreeSet<_>>().len(), NAMES.len());
}

macro_rules! words_are {
    ($($name:ty: $($text:literal)+;)+) => {$(
        let known: Vec<&str> = <$name>::KNOWN.iter().map(|it| it.as_str()).collect();
        assert_eq!(known, [$($text),+]);
        for word in <$name>::KNOWN {
            assert_eq!(&<$name>::from(String::from(word.clone())), word);
        }
        let newer: $name = serde_json::from_str("\"some-day\"").expect("any word");
        assert_eq!(serde_json::to_string(&newer).expect("JSON"), "\"some-day\"");
        assert_eq!(newer.to_string(), "some-day");
        assert!(!<$name>::KNOWN.contains(&newer));
    )+};
}

#[test]
fn states_are_spelled_as_ever_and_new_ones_are_passed_on() {
    words_are! {
        access::Mode: "off" "report" "enforce";
        access::DecidedBy: "super-user" "rule" "open-resource" "nothing";
        cluster::Geometry: "none" "one-per-dc" "mirror-3-dc" "block-4-2";
        cluster::Tolerance: "DC + rack" "DC" "2 racks" "rack" "nothing" "not serving";
        cluster::Liveness: "alive" "dead" "draining";
        cluster::SlotState: "good" "lost-data";
        cluster::Severity: "stops" "threatens" "notes";
        disk::Standing: "Unknown" "NotMember" "OtherLife" "LostData" "Good";
        disk::ScrubState: "idle" "waiting" "running";
        lifecycle::Purpose: "rest" "leave";
        link::Reached: "ok";
        link::Resealed: "sealed" "as it was";
        mirror::Stage: "creating" "mirroring" "paused" "promoting" "detached" "promoted";
        mirror::PartitionState: "verifying" "catching-up" "mirroring" "paused" "unreadable" "source-unreachable"
            "source-refused" "source-deleted" "source-recreated" "source-truncated" "diverged" "gap" "unsupported";
        mirror::Carried: "carried" "clamped" "ahead-here" "active-here" "changed-here" "not-here" "refused";
        mirror::DifferenceKind: "other-bytes" "only-here" "only-at-source";
        mirror::Policy: "stop" "follow" "promote";
        mirror::Subject: "topics" "groups";
        mirror::Act: "settled" "yielding" "yielded" "taking-over" "giving-way";
        mirror::Step: "fencing" "draining" "carrying-over" "promoting" "reversing" "rolling-back";
        mirror::Progress: "diverged" "giving-way" "replacing" "following" "writing";
        mirror::WhatNext: "give-way" "export" "replace" "wait" "done";
        mirror::LeaseState: "lease-held" "lease-missing";
        mirror::Verdict: "free" "throttled" "refused";
    }
}

#[test]
fn who_grants_a_lease_is_in_the_word() {
    use mirror::SourceLease::{Granted, GrantedBy, NotNeededYet, Unknown};
    for (lease, text) in [
        (Granted, "granted"),
        (GrantedBy("c".to_owned()), "granted-by c"),
        (NotNeededYet, "not-needed-yet"),
        (Unknown("lost".to_owned()), "lost"),
    ] {
        assert_eq!(serde_json::to_value(&lease).expect("JSON"), json!(text));
        assert_eq!(mirror::SourceLease::from(text.to_owned()), lease);
    }
}

/// What nodes decide by has names of its own, for logs and metrics: they are those of the API.
#[test]
fn states_have_one_name() {
    for step in meridian_mirror::switchover::Step::ALL {
        assert_eq!(mirror::Step::from(step).as_str(), step.name());
    }
    for name in meridian_mirror::vigil::Policy::NAMES {
        let policy = meridian_mirror::vigil::Policy::parse(name).expect("its own name");
        assert_eq!(mirror::Policy::from(policy).as_str(), *name);
    }
    let state = meridian_mirror::state::State::SourceDeleted;
    assert_eq!(mirror::PartitionState::from(&state).as_str(), state.name());
    let stage = meridian_mirror::rows::Stage::Detached { epoch_floor: Default::default() };
    assert_eq!(mirror::Stage::from(stage).as_str(), stage.name());
}
