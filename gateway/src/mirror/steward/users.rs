//! Users: those of a meridian source log in here too with the passwords that they have there
//! (`sync.users`).
//!
//! Over an encrypted link comes what passwords are checked by, and it is sealed here under this
//! cluster's own key. Users that operators have made here stay as they are, and so do all while
//! nothing is mirrored over the link: a source that was given up takes no user away.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use meridian_access::{Credential, Principal};
use meridian_admin_api::Method;
use meridian_admin_api::access::Credentials;
use meridian_admin_api::methods::AccessCredentials;
use meridian_consensus::command::RowKind;
use meridian_consensus::state::Metadata;
use meridian_mirror::rights::{Sides, Step, follow};
use meridian_protocol::messages::MeridianAdminRequest;

use super::entries::Item;
use super::follow::{Followed, LeftOut};
use super::notes::{Kinds, Notes};
use super::{LookError, Steward, follows};
use crate::client::ClientError;
use crate::kafka::users::carried;
use crate::mirror::survey;
use crate::runtime::secrets::Keyring;

const KINDS: Kinds = Kinds { of: RowKind::ScramUser, note: RowKind::CarriedUser };
const FOLLOWED: Followed = Followed { one: "credential", event: "users", many: "credentials " };

/// What this cluster brings to its users.
#[derive(Clone, Copy)]
struct Own<'a> {
    keys: &'a Keyring,
    super_users: &'a [Principal],
}

/// The credentials that the source has, and the keys of those in which it has no say.
#[derive(Debug, Default)]
struct Wanted {
    credentials: BTreeMap<Vec<u8>, Credential>,
    not_governed: BTreeSet<Vec<u8>>,
    left_out: LeftOut,
}

impl Wanted {
    fn of(answer: Credentials, super_users: &[Principal]) -> Self {
        let mut wanted = Self::default();
        for unopened in answer.unopened {
            let key = carried::key_of_unopened(&unopened);
            wanted.left_out.add(carried::name_of(&key), "the source's node can't open it");
            wanted.not_governed.insert(key);
        }
        for of_user in answer.credentials {
            let Some(key) = carried::key_of(&of_user) else {
                let name = of_user.user.escape_default().to_string();
                wanted.left_out.add(name, "there can be no such user or credential here");
                continue;
            };
            // Who has its password at the source would rule this cluster.
            if is_super(super_users, &key) {
                let why = "the user is a super user here; make it here with `meridian user create`";
                wanted.left_out.add(carried::name_of(&key), why);
                continue;
            }
            wanted.credentials.insert(key, of_user.credential);
        }
        wanted
    }
}

fn is_super(super_users: &[Principal], key: &[u8]) -> bool {
    carried::user_of(key).is_some_and(|user| super_users.contains(&Principal::user(user)))
}

/// What must change for the users here to be those of the source, and what is left out.
fn changes(
    metadata: &Metadata,
    link: &str,
    own: Own<'_>,
    answer: Credentials,
) -> Result<(Vec<Item>, LeftOut), LookError> {
    let Own { keys, super_users } = own;
    let Wanted { credentials: source, mut not_governed, mut left_out } =
        Wanted::of(answer, super_users);
    let notes = Notes::read(metadata, KINDS, link, &source.keys().cloned().collect());
    // What can't be opened is left as it is.
    let (mut here, mut noted) = (BTreeMap::new(), BTreeMap::new());
    for (key, credential) in carried::opened_rows(keys, &notes.here) {
        match credential {
            Some(credential) => drop(here.insert(key, credential)),
            None => drop(not_governed.insert(key)),
        }
    }
    for (key, note) in &notes.carried {
        match carried::opened_note(keys, link, key, note) {
            Some(credential) => drop(noted.insert(key.clone(), credential)),
            None => drop(not_governed.insert(key.clone())),
        }
    }
    let sides = Sides { source: &source, here: &here, carried: &noted };
    let governs = |key: &Vec<u8>| !not_governed.contains(key) && !is_super(super_users, key);
    let is_of_others = |key: &Vec<u8>, found: &Credential| {
        let others = notes.others.get(key).into_iter().flatten();
        let mut others = others.filter_map(|(of, note)| carried::opened_note(keys, of, key, note));
        others.any(|credential| credential == *found)
    };
    let mut items = Vec::new();
    for (key, step) in follow(sides, governs, is_of_others) {
        let name = carried::name_of(&key);
        if step == Step::Own {
            left_out.add(name, "it is this cluster's own, and another one at the source");
            continue;
        }
        let set = match source.get(&key) {
            Some(credential) if matches!(step, Step::Set | Step::Note) => {
                carried::sealed_for(keys, link, &key, credential)?
            }
            _ => Default::default(),
        };
        items.push(notes.item(KINDS, link, name, &key, step, set));
    }
    Ok((items, left_out))
}

impl Steward {
    /// Sets and removes users as the source does.
    pub(super) async fn follow_users(&self) -> Result<(), LookError> {
        let mirrors = self.duties().mirrors;
        let mirrored = mirrors.iter().find(|(_, mirror, _)| follows(mirror.stage));
        let Some((_, mirror, _)) = mirrored else { return Ok(()) };
        if !survey::is_meridian(&self.client, &mirror.source_name).await? {
            return Err(LookError::NoMeridian);
        }
        let (method, body) = (AccessCredentials::NAME.into(), Bytes::from_static(b"{}"));
        let request = MeridianAdminRequest { method, body };
        let told = self.client.query(&request).await?;
        let what = || "credentials of users".to_owned();
        ClientError::check(what, told.error_code, told.error_message.as_deref())?;
        let answer: Credentials =
            serde_json::from_slice(&told.body).map_err(|_| LookError::Credentials)?;
        let own =
            Own { keys: &self.node.own_end.keys, super_users: &self.node.config.front.super_users };
        let found = changes(&self.node.meta.metadata(), &self.link, own, answer);
        let (items, left_out) = found?;
        self.tell(|report| report.users_left_out = left_out.into_named());
        self.follow_with(FOLLOWED, &items).await
    }
}

#[cfg(test)]
mod tests {
    use meridian_access::ScramHash;
    use meridian_admin_api::access::{OfUser, Unopened};
    use meridian_consensus::command::{Command, ExpectedVersion, RowChange};

    use super::*;
    use crate::broker::Broker as _;
    use crate::kafka::testing::FakeBroker;
    use crate::mirror::steward::entries::put_all;

    fn keys(letter: &str) -> Keyring {
        Keyring::parse(&letter.repeat(64), "test").unwrap()
    }

    fn credential(byte: u8) -> Credential {
        Credential::new(ScramHash::Sha256, b"salt", 4096, &[byte; 32]).unwrap()
    }

    fn answer(users: &[(&str, u8)]) -> Credentials {
        let of = |(user, byte): &(&str, u8)| OfUser {
            user: (*user).to_owned(),
            credential: credential(*byte),
        };
        Credentials { credentials: users.iter().map(of).collect(), unopened: Vec::new() }
    }

    struct World {
        broker: std::sync::Arc<FakeBroker>,
        keys: Keyring,
    }

    impl World {
        fn new() -> Self {
            Self { broker: FakeBroker::single(), keys: keys("a") }
        }

        async fn follow(&self, link: &str, answer: Credentials) -> (Vec<String>, Vec<String>) {
            let super_users = [Principal::user("root")];
            let own = Own { keys: &self.keys, super_users: &super_users };
            let (items, left_out) =
                changes(&self.broker.state(), link, own, answer).expect("there is a key");
            let (done, failure) = put_all(&*self.broker, FOLLOWED.one, &items).await;
            assert!(failure.is_none(), "{failure:?}");
            let said = |it: &&Item| format!("{} {}", it.name, it.told);
            (done.iter().map(said).collect(), left_out.into_named().into_keys().collect())
        }

        /// The users here, and what their passwords are checked by.
        fn here(&self) -> Vec<(String, Credential)> {
            let state = self.broker.state();
            let rows = state.extra_rows(RowKind::ScramUser);
            let rows = rows.map(|(key, row)| (key.to_vec(), row.clone())).collect();
            let opened = carried::opened_rows(&self.keys, &rows).into_iter();
            opened
                .map(|(key, it)| (carried::user_of(&key).unwrap().to_owned(), it.unwrap()))
                .collect()
        }

        async fn make(&self, user: &str, byte: u8) {
            let (kind, expected) = (RowKind::ScramUser, ExpectedVersion::Any);
            let of = OfUser { user: user.to_owned(), credential: credential(byte) };
            let key = carried::key_of(&of).unwrap();
            let value = carried::sealed_for(&self.keys, "-", &key, &of.credential).unwrap().0;
            let change = RowChange { kind, key, value: Some(value), expected };
            self.broker.propose(Command::PutRows(vec![change])).await.expect("no condition");
        }
    }

    fn named(users: &[(&str, u8)]) -> Vec<(String, Credential)> {
        users.iter().map(|(user, byte)| ((*user).to_owned(), credential(*byte))).collect()
    }

    #[tokio::test]
    async fn users_come_change_and_go_as_at_the_source_and_own_ones_stay() {
        let world = World::new();
        world.make("own", 9).await;
        let name = |user: &str| format!("SCRAM-SHA-256 of user {user}");
        let (done, left_out) = world.follow("west", answer(&[("al", 1), ("own", 2)])).await;
        assert_eq!(done, [format!("{} set", name("al"))]);
        assert_eq!(left_out, [name("own")]);
        assert_eq!(world.here(), named(&[("al", 1), ("own", 9)]));
        assert_eq!(world.follow("west", answer(&[("al", 1)])).await.0, [""; 0]);
        world.follow("west", answer(&[("al", 3)])).await;
        assert_eq!(world.here(), named(&[("al", 3), ("own", 9)]));
        // A password that is set here is this cluster's own.
        world.make("al", 4).await;
        world.follow("west", answer(&[("al", 3)])).await;
        assert_eq!(world.follow("west", answer(&[("al", 5)])).await.1, [name("al")]);
        world.follow("west", answer(&[])).await;
        assert_eq!(world.here(), named(&[("al", 4), ("own", 9)]));
        assert_eq!(world.broker.state().extra_rows(RowKind::CarriedUser).count(), 0);
        world.follow("west", answer(&[("bo", 1)])).await;
        world.follow("north", answer(&[("bo", 1)])).await;
        assert_eq!(world.follow("west", answer(&[])).await.0, [format!("{} ", name("bo"))]);
        assert_eq!(world.here().len(), 3, "the other link has it still");
        world.follow("north", answer(&[])).await;
        assert_eq!(world.here(), named(&[("al", 4), ("own", 9)]));
    }

    #[tokio::test]
    async fn nobody_becomes_a_super_user_and_what_nobody_can_open_stays() {
        let world = World::new();
        let (_, left_out) = world.follow("west", answer(&[("root", 1), ("a\nb", 1)])).await;
        assert_eq!(left_out, ["SCRAM-SHA-256 of user root", "a\\nb"]);
        assert_eq!(world.here(), []);
        world.follow("west", answer(&[("al", 1)])).await;
        let unopened = Unopened { user: "al".to_owned(), mechanism: ScramHash::Sha256 };
        let unknown = Credentials { credentials: Vec::new(), unopened: vec![unopened] };
        assert_eq!(world.follow("west", unknown).await.1, ["SCRAM-SHA-256 of user al"]);
        assert_eq!(world.here(), named(&[("al", 1)]));
        // Nor does a node change what it can't open itself.
        let others = World { broker: std::sync::Arc::clone(&world.broker), keys: keys("b") };
        assert_eq!(others.follow("west", answer(&[("al", 2)])).await.0, [""; 0]);
        assert_eq!(world.here(), named(&[("al", 1)]));
        let rows = world.broker.state();
        for kind in [RowKind::ScramUser, RowKind::CarriedUser] {
            assert!(rows.extra_rows(kind).all(|(_, row)| row.value.starts_with(b"sealed:")));
        }
    }
}
