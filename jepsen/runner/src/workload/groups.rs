//! `groups`: members that come and go, commit, and commit after they were replaced.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use meridian_protocol::ErrorCode;

use super::consumers::{Last, Subscribed, is_definite_refusal};
use super::log::Producer;
use super::{GROUP, Pen, Stage, Worker, Workload};
use crate::client::group::Member;
use crate::client::{CallError, Client};
use crate::clock;
use crate::history::{Body, Key, Offset};

pub(super) fn workload() -> Workload {
    Workload {
        name: "groups",
        about: "members that come, go and commit; zombies that commit; observers",
        prepare: |_, _| Ok(()),
        worker: |stage, worker| match worker % 4 {
            0 => Box::new(Producer::new(stage, worker)),
            1 => Box::new(Observer::new(stage, worker)),
            _ => Box::new(Subscribed::new(stage, worker)),
        },
        last: |stage| {
            let mut all = Last::all(stage);
            all.push(Box::new(LastLook { client: stage.client(0), done: false }));
            all
        },
    }
}

/// Its session has ended by then, also if its coordinator has moved.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(15);

const ASK_AGAIN_AFTER: Duration = Duration::from_millis(100);
/// Who was asked does not coordinate the group, or not yet.
const COORDINATOR_ELSEWHERE: [ErrorCode; 3] = [
    ErrorCode::NotCoordinator,
    ErrorCode::CoordinatorNotAvailable,
    ErrorCode::CoordinatorLoadInProgress,
];

/// Asks where the group is; now and then commits for a generation that is long over.
struct Observer {
    client: Client,
    member: Member,
    /// When it was a member last.
    past: Option<Instant>,
}

impl Observer {
    fn new(stage: &Stage<'_>, worker: usize) -> Self {
        let member = Member::new(GROUP, stage.partition_count);
        Self { client: stage.client(worker), member, past: None }
    }

    /// Commits position 0 everywhere for a past generation: if that counts, the group goes back.
    fn zombie_commit(&mut self, stage: &Stage<'_>, pen: &mut Pen<'_>) {
        let Some(past) = self.past else {
            // It joins, and is forgotten by its group when its session ends.
            if self.member.tend(&mut self.client).is_ok() {
                self.past = Some(clock::now());
            }
            return;
        };
        if past.elapsed() < FORGOTTEN_AFTER {
            return;
        }
        let offsets: BTreeMap<Key, Offset> = stage.keys().into_iter().map(|key| (key, 0)).collect();
        let body = Body::Commit {
            generation: i64::from(self.member.generation),
            offsets: offsets.clone(),
        };
        pen.invoke(body.clone());
        match self.commit_wherever(stage, &offsets) {
            Ok(()) => pen.ok(body),
            Err(error) if error.code().is_some_and(is_definite_refusal) => {
                pen.fail(body, error.to_string());
            }
            Err(error) => pen.failed(body, &error),
        }
        self.member = Member::new(GROUP, stage.partition_count);
        self.past = None;
    }

    /// Commits at whoever coordinates the group by now: what it knew of that is old.
    fn commit_wherever(
        &mut self,
        stage: &Stage<'_>,
        offsets: &BTreeMap<Key, Offset>,
    ) -> Result<(), CallError> {
        let deadline = clock::now() + stage.patience;
        loop {
            let result = self.member.commit(&mut self.client, offsets);
            let has_not_asked = |error: &CallError| match error.code() {
                Some(code) => COORDINATOR_ELSEWHERE.contains(&code),
                None => !error.may_have_happened(),
            };
            if clock::now() > deadline || !result.as_ref().is_err_and(has_not_asked) {
                return result;
            }
            clock::sleep(ASK_AGAIN_AFTER);
        }
    }
}

impl Worker for Observer {
    fn step(&mut self, stage: &Stage<'_>, pen: &mut Pen<'_>) {
        if pen.chance.per_mille(30) {
            return self.zombie_commit(stage, pen);
        }
        look(&mut self.client, stage, pen);
    }
}

/// Asks where the group is.
fn look(client: &mut Client, stage: &Stage<'_>, pen: &mut Pen<'_>) -> bool {
    pen.invoke(Body::Committed(None));
    let keys = stage.keys();
    match Member::new(GROUP, stage.partition_count).committed(client, &keys) {
        Ok(offsets) => {
            pen.ok(Body::Committed(Some(offsets)));
            true
        }
        Err(error) => {
            pen.fail(Body::Committed(None), error.to_string());
            false
        }
    }
}

struct LastLook {
    client: Client,
    done: bool,
}

impl Worker for LastLook {
    fn step(&mut self, stage: &Stage<'_>, pen: &mut Pen<'_>) {
        self.done = look(&mut self.client, stage, pen);
    }

    fn is_done(&self) -> bool {
        self.done
    }
}
