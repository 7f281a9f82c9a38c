//! The private API of our own operator tools: named methods that take and give JSON.

use std::sync::Arc;

use meridian_protocol::messages::{MeridianAdminRequest, MeridianAdminResponse};
use meridian_protocol::{ErrorCode, Str};

use super::access::operators;
use super::connections;
use super::dispatch::Call;
use super::link_rights;
use super::quotas;
use crate::admin_api::{AdminError, AdminHandler};

/// Answers a call: about access rules and connections here, and else by the node.
pub(super) async fn call(call: Call, request: MeridianAdminRequest) -> MeridianAdminResponse {
    let method = request.method.to_string();
    let admin: Option<&Arc<dyn AdminHandler>> = call.front.admin.as_ref();
    let admitted = link_rights::admitted(&call, &method, request.body);
    let result = match (admin, admitted) {
        (_, Err(error)) => Err(error),
        (_, Ok(body)) if method.starts_with(operators::FAMILY) => {
            operators::answer(&call, &method, &body).await
        }
        (_, Ok(body)) if method.starts_with(connections::operators::FAMILY) => {
            connections::operators::answer(&call, &method, &body).await
        }
        (_, Ok(body)) if method.starts_with(quotas::operators::FAMILY) => {
            quotas::operators::answer(&call, &method, &body)
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
    use bytes::Bytes;
    use meridian_base::env::SplitMix;

    use super::*;
    use crate::kafka::Front;
    use crate::kafka::testing::{FakeBroker, TestClient, front_of, quick_config};
    use crate::peers::BoxFuture;

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
