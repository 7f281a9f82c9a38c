//! Each API that the node serves, without rules and with exactly those that it asks for.

mod alike;
mod cases;
mod methods;
mod operations;
mod world;

use std::collections::BTreeSet;

use meridian_access::{Operation, Resource, ResourceType};
use meridian_protocol::{ApiKey, ErrorCode, RequestMessage, Uuid};

use self::world::World;
use super::refusal;
use super::rules::Authorization;
use crate::kafka::dispatch::SERVED;
use crate::kafka::testing::TestClient;
use crate::peers::BoxFuture;

const TOPIC: &str = "orders";
const OTHER: &str = "bills";
const MISSING: &str = "nowhere";
const GROUP: &str = "readers";
/// A group of KIP-848 whose member reads [`TOPIC`].
const WORKERS: &str = "workers";
/// A share group whose member reads [`TOPIC`], and one without members.
const SHARERS: &str = "sharers";
const QUEUE: &str = "queue";
const TRANSACTION: &str = "billing";

const ON_TOPIC: Resource<'_> = Resource::topic(TOPIC);
const ON_GROUP: Resource<'_> = Resource::group(GROUP);
const ON_WORKERS: Resource<'_> = Resource::group(WORKERS);
const ON_SHARERS: Resource<'_> = Resource::group(SHARERS);
const ON_QUEUE: Resource<'_> = Resource::group(QUEUE);
const ON_TRANSACTION: Resource<'_> = Resource::transactional_id(TRANSACTION);
const ON_CLUSTER: Resource<'_> = Resource::CLUSTER;
/// The user whose delegation tokens others make and see.
const BOB: &str = "bob";
const ON_BOB: Resource<'_> = Resource { kind: ResourceType::User, name: "User:bob" };

/// APIs that ask for no right.
const ASK_NOTHING: [ApiKey; 7] = [
    ApiKey::SaslHandshake,
    ApiKey::ApiVersions,
    ApiKey::SaslAuthenticate,
    // Of their own tokens.
    ApiKey::RenewDelegationToken,
    ApiKey::ExpireDelegationToken,
    ApiKey::GetTelemetrySubscriptions,
    ApiKey::PushTelemetry,
];

/// The errors of clients that may not do something.
const REFUSALS: [ErrorCode; 5] = [
    ErrorCode::TopicAuthorizationFailed,
    ErrorCode::GroupAuthorizationFailed,
    ErrorCode::ClusterAuthorizationFailed,
    ErrorCode::TransactionalIdAuthorizationFailed,
    ErrorCode::DelegationTokenAuthorizationFailed,
];

/// A right: an operation on a resource.
type Right = (Operation, Resource<'static>);

/// The answer to a client without rules.
#[derive(Clone, Copy, Debug)]
enum Refused {
    /// It has this error.
    With(ErrorCode),
    /// It has no error, and this text is not in it.
    Hides(&'static str),
    /// It has no error, and this text is in it.
    Says(&'static str),
}

type Ask = Box<dyn for<'a> Fn(&'a mut TestClient, Uuid) -> BoxFuture<'a, String>>;

/// A request, and the rights that it asks for.
struct Case {
    what: &'static str,
    api: ApiKey,
    rights: Vec<Right>,
    refused: Refused,
    /// Sends it, given the id of [`TOPIC`]. Gives the answer as text.
    ask: Ask,
}

impl Case {
    /// A request of the newest version.
    fn new<R>(
        what: &'static str,
        rights: &[Right],
        refused: Refused,
        request: impl Fn(Uuid) -> R + Send + Sync + 'static,
    ) -> Self
    where
        R: RequestMessage + Send + Sync + 'static,
        R::Response: std::fmt::Debug,
    {
        Self::of_version(*R::API.versions().end(), what, rights, refused, request)
    }

    fn of_version<R>(
        version: i16,
        what: &'static str,
        rights: &[Right],
        refused: Refused,
        request: impl Fn(Uuid) -> R + Send + Sync + 'static,
    ) -> Self
    where
        R: RequestMessage + Send + Sync + 'static,
        R::Response: std::fmt::Debug,
    {
        let ask: Ask = Box::new(move |client, topic_id| {
            let request = request(topic_id);
            Box::pin(async move { format!("{:?}", client.call(version, request).await) })
        });
        Self { what, api: R::API, rights: rights.to_vec(), refused, ask }
    }

    async fn ask(&self, world: &mut World) -> String {
        world.prepare(self.api).await;
        self.send(world).await
    }

    async fn send(&self, world: &mut World) -> String {
        let topic_id = world.broker.topic_uuid(TOPIC);
        (self.ask)(&mut world.alice, topic_id).await
    }

    /// A client without rights has the right error.
    async fn check_refused(&self, world: &mut World) {
        world.allow(&[]);
        world.prepare(self.api).await;
        let decided_count = world.broker.applied_count();
        let told = self.send(world).await;
        let refusals = refusals_in(&told);
        let Self { what, api, refused, .. } = self;
        match refused {
            Refused::With(code) => {
                assert_eq!(world.broker.applied_count(), decided_count, "{api:?} {what}");
                assert_eq!(refusals, BTreeSet::from([code.code()]), "{api:?} {what}: {told}");
            }
            Refused::Hides(text) => {
                assert!(refusals.is_empty(), "{api:?} {what}: {told}");
                assert!(!told.contains(text), "{api:?} {what}: {told}");
            }
            Refused::Says(text) => {
                assert!(refusals.is_empty(), "{api:?} {what}: {told}");
                assert!(told.contains(text), "{api:?} {what}: {told}");
            }
        }
    }

    /// The rights are enough.
    async fn check_allowed(&self, world: &mut World) {
        world.allow(&self.rights);
        let told = self.ask(world).await;
        let Self { what, api, refused, .. } = self;
        assert_eq!(refusals_in(&told), BTreeSet::new(), "{api:?} {what}: {told}");
        match refused {
            Refused::With(_) => {}
            Refused::Hides(text) => assert!(told.contains(text), "{api:?} {what}: {told}"),
            Refused::Says(text) => assert!(!told.contains(text), "{api:?} {what}: {told}"),
        }
    }

    /// Each of the rights is needed.
    async fn check_needed(&self, world: &mut World) {
        let Self { what, api, rights, refused, .. } = self;
        for (index, (operation, resource)) in rights.iter().enumerate().filter(|_| rights.len() > 1)
        {
            let mut others = rights.clone();
            others.remove(index);
            world.allow(&others);
            let told = self.ask(world).await;
            let missing = format!("{api:?} {what} without {operation} {resource:?}: {told}");
            let refusals = refusals_in(&told);
            // A right on the cluster may stand for rights on each resource.
            let is_refused = match resource.kind {
                ResourceType::Cluster => !refusals.is_empty(),
                kind => refusals.contains(&refusal(kind).code()),
            };
            let is_hidden = matches!(refused, Refused::Hides(text) if !told.contains(text));
            assert!(is_refused || is_hidden, "{missing}");
        }
    }
}

/// The authorization errors in an answer.
fn refusals_in(told: &str) -> BTreeSet<i16> {
    let is_told = |code: &&ErrorCode| told.contains(&format!("{code:?}"));
    REFUSALS.iter().filter(is_told).map(|code| code.code()).collect()
}

#[tokio::test]
async fn each_api_asks_for_the_rights_that_it_should_and_no_others() {
    let mut world = World::start().await;
    for case in cases::all() {
        case.check_refused(&mut world).await;
        case.check_allowed(&mut world).await;
        case.check_needed(&mut world).await;
    }
}

/// A user with rights on other resources has the errors of one without any.
#[tokio::test]
async fn rights_on_other_resources_help_nobody() {
    let mut world = World::start().await;
    for case in cases::all() {
        let of_other = |(operation, resource): &Right| {
            let is_only = resource.kind == ON_CLUSTER.kind;
            (!is_only).then_some((*operation, Resource { name: "elsewhere", ..*resource }))
        };
        let others: Vec<Right> = case.rights.iter().filter_map(of_other).collect();
        // WRITE on any topic makes a user an idempotent producer.
        if others.is_empty() || case.api == ApiKey::InitProducerId {
            continue;
        }
        world.allow(&others);
        let told = case.ask(&mut world).await;
        let is_refused = match case.refused {
            Refused::With(_) => !refusals_in(&told).is_empty(),
            Refused::Hides(text) => !told.contains(text) || !refusals_in(&told).is_empty(),
            Refused::Says(text) => told.contains(text),
        };
        assert!(is_refused, "{:?} {}: {told}", case.api, case.what);
    }
}

/// Operators learn from it which rules they need, before any client is refused.
#[tokio::test]
async fn reported_denials_are_counted_and_refuse_nothing() {
    let mut world = World::start().await;
    let denied_count = |world: &World| world.front.access_rules.denied_count();
    for case in cases::all() {
        world.set_mode(Authorization::Report);
        world.allow(&[]);
        let before = denied_count(&world);
        let told = case.ask(&mut world).await;
        let Case { what, api, refused, .. } = &case;
        assert_eq!(refusals_in(&told), BTreeSet::new(), "{api:?} {what}: {told}");
        let is_try = matches!(refused, Refused::With(_));
        assert_eq!(denied_count(&world) > before, is_try, "{api:?} {what}");
        // To look at what is hidden is no denial.
        world.set_mode(Authorization::Enforce);
        let before = denied_count(&world);
        case.ask(&mut world).await;
        assert_eq!(denied_count(&world) > before, is_try, "{api:?} {what}");
    }
}

#[test]
fn each_api_that_is_served_has_a_case_or_asks_nothing() {
    let cases = cases::all();
    for api in SERVED {
        let has_case = cases.iter().any(|case| case.api == *api);
        assert_ne!(has_case, ASK_NOTHING.contains(api), "{api:?}");
    }
}
