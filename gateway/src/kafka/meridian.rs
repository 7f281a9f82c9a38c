//! The private API of our own operator tools: named methods that take and give JSON.

use std::sync::Arc;

use bytes::Bytes;
use meridian_protocol::messages::{MeridianAdminRequest, MeridianAdminResponse};
use meridian_protocol::{ErrorCode, Str};

use super::dispatch::Call;
use crate::broker::BoxFuture;

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
    /// It cannot work.
    #[error("{0}")]
    Failed(String),
}

/// The methods of the node, such as `cluster.status`: dispatch is by name alone.
pub trait AdminHandler: Send + Sync + 'static {
    /// Calls a method. `body` is its arguments in JSON, and so is what comes back.
    fn call(&self, method: String, body: Bytes) -> BoxFuture<'_, Result<Bytes, AdminError>>;
}

/// Passes a call on to the node.
pub(super) async fn call(call: Call, request: MeridianAdminRequest) -> MeridianAdminResponse {
    let method = request.method.to_string();
    let admin: Option<&Arc<dyn AdminHandler>> = call.front.admin.as_ref();
    let result = match admin {
        Some(admin) => admin.call(method, request.body).await,
        None => Err(AdminError::UnknownMethod(method)),
    };
    match result {
        Ok(body) => MeridianAdminResponse { body, ..Default::default() },
        Err(error) => {
            let error_code = match &error {
                AdminError::UnknownMethod(_) | AdminError::InvalidArguments(_) => {
                    ErrorCode::InvalidRequest
                }
                AdminError::Unavailable(_) => ErrorCode::CoordinatorNotAvailable,
                AdminError::Failed(_) => ErrorCode::UnknownServerError,
            };
            call.front.metrics.on_error(error_code);
            let error_message = Some(Str::from(error.to_string()));
            MeridianAdminResponse { error_code, error_message, ..Default::default() }
        }
    }
}
