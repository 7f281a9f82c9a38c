//! The private API of our own operator tools: named methods that take and give JSON.

use std::sync::Arc;

use bytes::Bytes;
use meridian_consensus::error::Refusal;
use meridian_protocol::messages::{MeridianAdminRequest, MeridianAdminResponse};
use meridian_protocol::{ErrorCode, Str};
use serde::{Deserialize, Serialize};

use super::access::operators;
use super::dispatch::Call;
use super::link_rights;
use crate::features::NotAgreed;
use crate::meta::ProposeError;
use crate::peers::BoxFuture;

/// Why an operator's method gave nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AdminError {
    /// No such method.
    #[error("unknown method {0}; the tool may be newer than this node")]
    UnknownMethod(String),
    /// Its arguments are not what it takes.
    #[error("{0}")]
    InvalidArguments(String),
    /// It does not work now.
    #[error("{0}; retry later")]
    Unavailable(String),
    /// It would put records or service at risk, so it was not done.
    #[error("{0}")]
    Unsafe(String),
    /// It cannot work.
    #[error("{0}")]
    Failed(String),
    /// The client may not do it.
    #[error("{message}")]
    Denied {
        /// The error that Kafka has for it.
        code: ErrorCode,
        /// Which rule there would have to be.
        message: String,
    },
}

impl From<ProposeError> for AdminError {
    fn from(error: ProposeError) -> Self {
        match error {
            // Who asks again has it judged by what is there now.
            ProposeError::Refused(Refusal::StaleRow { .. }) => Self::Unavailable(error.to_string()),
            ProposeError::Refused(_) => Self::Failed(error.to_string()),
            ProposeError::TimedOut | ProposeError::ShuttingDown => {
                Self::Unavailable(error.to_string())
            }
        }
    }
}

impl From<NotAgreed> for AdminError {
    fn from(error: NotAgreed) -> Self {
        match error {
            NotAgreed::NotBy { .. } => Self::Failed(error.to_string()),
            NotAgreed::Undecided(error) => error.into(),
        }
    }
}

/// The arguments of a method.
pub(crate) fn arguments<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, AdminError> {
    serde_json::from_slice(body).map_err(|error| AdminError::InvalidArguments(error.to_string()))
}

/// The answer of a method.
pub(crate) fn json(answer: &impl Serialize) -> Result<Bytes, AdminError> {
    serde_json::to_vec(answer)
        .map(Bytes::from)
        .map_err(|error| AdminError::Failed(error.to_string()))
}

/// The methods of the node, such as `cluster.status`: dispatch is by name alone.
pub trait AdminHandler: Send + Sync + 'static {
    /// Calls a method. `body` is its arguments in JSON, and so is what comes back.
    fn call(&self, method: String, body: Bytes) -> BoxFuture<'_, Result<Bytes, AdminError>>;
}

/// Answers a call: about access rules here, and else by the node.
pub(super) async fn call(call: Call, request: MeridianAdminRequest) -> MeridianAdminResponse {
    let method = request.method.to_string();
    let admin: Option<&Arc<dyn AdminHandler>> = call.front.admin.as_ref();
    let admitted = link_rights::admitted(&call, &method, request.body);
    let result = match (admin, admitted) {
        (_, Err(error)) => Err(error),
        (_, Ok(body)) if method.starts_with(operators::FAMILY) => {
            operators::answer(&call, &method, &body).await
        }
        (Some(admin), Ok(body)) => admin.call(method, body).await,
        (None, Ok(_)) => Err(AdminError::UnknownMethod(method)),
    };
    match result {
        Ok(body) => MeridianAdminResponse { body, ..Default::default() },
        Err(error) => {
            let error_code = match &error {
                AdminError::UnknownMethod(_) | AdminError::InvalidArguments(_) => {
                    ErrorCode::InvalidRequest
                }
                AdminError::Unavailable(_) => ErrorCode::CoordinatorNotAvailable,
                AdminError::Unsafe(_) => ErrorCode::PolicyViolation,
                AdminError::Failed(_) => ErrorCode::UnknownServerError,
                AdminError::Denied { code, .. } => *code,
            };
            call.front.metrics.on_error(error_code);
            let error_message = Some(Str::from(error.to_string()));
            MeridianAdminResponse { error_code, error_message, ..Default::default() }
        }
    }
}

#[cfg(test)]
mod tests {
    use meridian_base::env::SplitMix;

    use super::*;
    use crate::kafka::Front;
    use crate::kafka::testing::{FakeBroker, TestClient, front_of, quick_config};

    /// A source is released until it says that it is: what has changed meanwhile may be the fence.
    #[test]
    fn what_changed_meanwhile_is_asked_again() {
        let of = |refusal: Refusal| AdminError::from(ProposeError::from(refusal));
        assert!(matches!(of(Refusal::StaleRow { index: 0 }), AdminError::Unavailable(_)));
        assert!(matches!(of(Refusal::TopicExists), AdminError::Failed(_)));
    }

    struct Echo;

    impl AdminHandler for Echo {
        fn call(&self, method: String, body: Bytes) -> BoxFuture<'_, Result<Bytes, AdminError>> {
            Box::pin(async move {
                match method.as_str() {
                    "echo" => Ok(body),
                    "busy" => Err(AdminError::Unavailable("no leader".to_owned())),
                    _ => Err(AdminError::UnknownMethod(method)),
                }
            })
        }
    }

    async fn told(client: &mut TestClient, method: &str) -> MeridianAdminResponse {
        let body = Bytes::from_static(b"{}");
        client.call(0, MeridianAdminRequest { method: method.into(), body }).await
    }

    #[tokio::test]
    async fn methods_are_called_by_name() {
        let broker = FakeBroker::three_datacenters();
        let rng = Box::new(SplitMix::new(1));
        let front = Front::new(broker, quick_config(), rng, Some(Arc::new(Echo)));
        let mut client = TestClient::connect(&front);
        let echo = told(&mut client, "echo").await;
        assert_eq!((echo.error_code, &echo.body[..]), (ErrorCode::None, &b"{}"[..]));
        assert!(told(&mut client, "busy").await.error_code.is_retriable());
        let unknown = told(&mut client, "nope").await;
        assert_eq!(unknown.error_code, ErrorCode::InvalidRequest);
        assert!(unknown.error_message.is_some_and(|message| message.contains("nope")));
    }

    #[tokio::test]
    async fn a_node_without_methods_says_so() {
        let front = front_of(&FakeBroker::three_datacenters(), quick_config());
        let mut client = TestClient::connect(&front);
        assert_eq!(told(&mut client, "echo").await.error_code, ErrorCode::InvalidRequest);
    }
}
