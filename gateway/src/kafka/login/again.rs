//! A client that logs in again on the connection that it has, before its login ends (KIP-368).
//!
//! **Source**: `SaslServerAuthenticator`: who logs in again stays the user that it is, by the mechanism that it used.

use std::sync::Mutex;

use meridian_access::{Mechanism, Principal};
use meridian_protocol::messages::{
    SaslAuthenticateRequest, SaslAuthenticateResponse, SaslHandshakeRequest, SaslHandshakeResponse,
};
use meridian_protocol::{ErrorCode, Str};

use super::WRAPPED_FROM_VERSION;
use super::exchange::{Exchange, Proved, Stage, Step};
use crate::kafka::dispatch::Call;
use crate::kafka::lock;

/// How far a client is that logs in again.
#[derive(Default)]
pub(in crate::kafka) struct Again(Mutex<Stage>);

impl std::fmt::Debug for Again {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Again").finish_non_exhaustive()
    }
}

impl Again {
    fn take(&self) -> Stage {
        std::mem::take(&mut *lock(&self.0))
    }

    fn set(&self, stage: Stage) {
        *lock(&self.0) = stage;
    }
}

/// Answers a client that would log in where it cannot, or need not, or that begins to log in again.
pub(in crate::kafka) fn handshake(
    call: &Call,
    request: &SaslHandshakeRequest,
) -> SaslHandshakeResponse {
    let error_code = match choose(call, &request.mechanism) {
        Ok(mechanism) => {
            call.client.again.set(Stage::Chosen(mechanism));
            ErrorCode::None
        }
        Err(error_code) => {
            call.front.metrics.on_error(error_code);
            error_code
        }
    };
    let listener = call.client.listener.as_ref();
    let mechanisms = listener.into_iter().filter(|it| it.has_login);
    let mechanisms = mechanisms.flat_map(|it| it.mechanisms()).map(|it| it.name().into()).collect();
    SaslHandshakeResponse { error_code, mechanisms }
}

fn choose(call: &Call, name: &Str) -> Result<Mechanism, ErrorCode> {
    let stage = call.client.again.take();
    let login = call.client.session.renewable().ok_or(ErrorCode::IllegalSaslState)?;
    if !matches!(stage, Stage::Silent) || call.version < WRAPPED_FROM_VERSION {
        call.client.session.fail();
        return Err(ErrorCode::IllegalSaslState);
    }
    if login.mechanism.name() != &**name {
        call.client.session.fail();
        return Err(ErrorCode::UnsupportedSaslMechanism);
    }
    Ok(login.mechanism)
}

/// Answers a message of a client that logs in again, or of a login that was not begun.
pub(in crate::kafka) async fn message(
    call: Call,
    request: SaslAuthenticateRequest,
) -> SaslAuthenticateResponse {
    let stage = call.client.again.take();
    let (Some(listener), false) = (&call.client.listener, matches!(stage, Stage::Silent)) else {
        let error_code = ErrorCode::IllegalSaslState;
        let said = "SaslAuthenticate comes after SaslHandshake, and at a listener with SASL alone";
        call.front.metrics.on_error(error_code);
        return refused(error_code, said);
    };
    let exchange = Exchange { front: &call.front, listener, peer: call.client.peer };
    match exchange.step(stage, &request.auth_bytes).await {
        Step::Goes(stage, bytes) => {
            call.client.again.set(stage);
            SaslAuthenticateResponse { auth_bytes: bytes.into(), ..Default::default() }
        }
        Step::Proved(proved, bytes) => renew(&call, *proved, bytes),
        Step::Failed(failure) => {
            call.client.session.fail();
            exchange.punish().await;
            let response = failure.response();
            call.front.metrics.on_login(false);
            call.front.metrics.on_error(response.error_code);
            response
        }
    }
}

fn renew(call: &Call, proved: Proved, bytes: Vec<u8>) -> SaslAuthenticateResponse {
    let Proved { principal, login, lifetime_ms } = proved;
    let session = &call.client.session;
    if principal != session.principal {
        session.fail();
        let said = other_user(&session.principal, &principal);
        call.front.metrics.on_login(false);
        call.front.metrics.on_error(ErrorCode::SaslAuthenticationFailed);
        return refused(ErrorCode::SaslAuthenticationFailed, &said);
    }
    session.renew(login);
    call.front.metrics.on_login(true);
    let auth_bytes = bytes.into();
    let session_lifetime_ms = lifetime_ms;
    SaslAuthenticateResponse { auth_bytes, session_lifetime_ms, ..Default::default() }
}

/// In Kafka's words.
fn other_user(before: &Principal, now: &Principal) -> String {
    format!(
        "Cannot change principals during re-authentication from {}.{} to {}.{}",
        before.kind.name(),
        before.name,
        now.kind.name(),
        now.name
    )
}

fn refused(error_code: ErrorCode, said: &str) -> SaslAuthenticateResponse {
    let error_message = Some(said.into());
    SaslAuthenticateResponse { error_code, error_message, ..Default::default() }
}
