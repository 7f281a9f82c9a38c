//! DescribeUserScramCredentials (KIP-554): nobody logs in yet, so that there are no credentials.
//! The tools that describe users ask for them beside quotas.

use std::collections::BTreeMap;

use meridian_protocol::messages::{
    DescribeUserScramCredentialsRequest, DescribeUserScramCredentialsResponse, DescribedScramUser,
};
use meridian_protocol::{ErrorCode, Str};

use super::dispatch::Call;

/// Describes the credentials of users, each of them once.
pub(super) fn describe(
    call: &Call,
    request: DescribeUserScramCredentialsRequest,
) -> DescribeUserScramCredentialsResponse {
    let mut counts: BTreeMap<Str, usize> = BTreeMap::new();
    for user in request.users.into_iter().flatten() {
        *counts.entry(user.name).or_default() += 1;
    }
    let described = |(user, count): (Str, usize)| {
        let (error_code, message) = match count {
            1 => (ErrorCode::ResourceNotFound, "there is no credential of this user"),
            _ => (ErrorCode::DuplicateResource, "a request names each user once"),
        };
        call.front.metrics.on_error(error_code);
        let error_message = Some(message.into());
        DescribedScramUser { user, error_code, error_message, ..Default::default() }
    };
    let results = counts.into_iter().map(described).collect();
    DescribeUserScramCredentialsResponse { results, ..Default::default() }
}

#[cfg(test)]
mod tests {
    use meridian_protocol::messages::ScramUserName;

    use super::*;
    use crate::kafka::testing::{FakeBroker, TestClient, front_of, quick_config};

    #[tokio::test]
    async fn nobody_has_credentials() {
        let mut client = TestClient::connect(&front_of(&FakeBroker::single(), quick_config()));
        let none: &[(&str, ErrorCode)] = &[];
        for (names, expected) in [
            (None, none),
            (Some(vec![]), none),
            (Some(vec!["a"]), &[("a", ErrorCode::ResourceNotFound)]),
            (Some(vec![""]), &[("", ErrorCode::ResourceNotFound)]),
            (
                Some(vec!["b", "a", "b"]),
                &[("a", ErrorCode::ResourceNotFound), ("b", ErrorCode::DuplicateResource)],
            ),
        ] {
            let name = |name: &str| ScramUserName { name: name.into() };
            let users = names.map(|names| names.into_iter().map(name).collect());
            let answer = client.call(0, DescribeUserScramCredentialsRequest { users }).await;
            assert_eq!(answer.error_code, ErrorCode::None);
            let answer: Vec<_> =
                answer.results.iter().map(|it| (&*it.user, it.error_code)).collect();
            assert_eq!(answer, expected);
        }
    }
}
