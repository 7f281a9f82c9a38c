//! The private API of our own operator tools, as its methods see it: arguments and answers in JSON, and one error.

use bytes::Bytes;
use meridian_admin_api::Method;
use meridian_consensus::error::Refusal;
use meridian_protocol::ErrorCode;
use serde::{Deserialize, Serialize};

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

/// The arguments of a method. A body without any means that there are none.
pub(crate) fn arguments<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, AdminError> {
    let body = if body.is_empty() { b"{}" } else { body };
    serde_json::from_slice(body).map_err(|error| AdminError::InvalidArguments(error.to_string()))
}

/// The answer of a method.
pub(crate) fn json(answer: &impl Serialize) -> Result<Bytes, AdminError> {
    serde_json::to_vec(answer)
        .map(Bytes::from)
        .map_err(|error| AdminError::Failed(error.to_string()))
}

/// Answers a method: reads its request, has it handled, and writes its answer.
pub(crate) async fn answered<M: Method, F>(
    body: &[u8],
    handle: impl FnOnce(M::Request) -> F,
) -> Result<Bytes, AdminError>
where
    F: Future<Output = Result<M::Answer, AdminError>>,
{
    json(&handle(arguments(body)?).await?)
}

/// As [`answered`], for what is handled without waiting.
pub(crate) fn answered_now<M: Method>(
    body: &[u8],
    handle: impl FnOnce(M::Request) -> Result<M::Answer, AdminError>,
) -> Result<Bytes, AdminError> {
    json(&handle(arguments(body)?)?)
}

/// The methods of the node, such as `cluster.status`: dispatch is by name alone.
pub trait AdminHandler: Send + Sync + 'static {
    /// Calls a method. `body` is its arguments in JSON, and so is what comes back.
    fn call(&self, method: String, body: Bytes) -> BoxFuture<'_, Result<Bytes, AdminError>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A source is released until it says that it is: what has changed meanwhile may be the fence.
    #[test]
    fn what_changed_meanwhile_is_asked_again() {
        let of = |refusal: Refusal| AdminError::from(ProposeError::from(refusal));
        assert!(matches!(of(Refusal::StaleRow { index: 0 }), AdminError::Unavailable(_)));
        assert!(matches!(of(Refusal::TopicExists), AdminError::Failed(_)));
    }
}
