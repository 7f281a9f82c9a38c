//! Saying who we are: SaslHandshake, then the messages of a mechanism in SaslAuthenticate.

use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use meridian_access::{Mechanism, TOKEN_DISMISSED};
use meridian_protocol::ErrorCode;
use meridian_protocol::messages::{
    SaslAuthenticateRequest, SaslAuthenticateResponse, SaslHandshakeRequest,
};

use super::scram::{Scram, ScramName};
use crate::{ClientError, Connection};

/// Time for one message of a mechanism; the time for the whole of a connection ends before.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);
/// From this version on the messages of a mechanism are in SaslAuthenticate.
const HANDSHAKE_VERSION_MIN: i16 = 1;

/// Who we are.
#[derive(Clone)]
pub(super) struct Sasl {
    pub(super) mechanism: Mechanism,
    /// Empty with a token, which says it.
    pub(super) username: String,
    /// Or the token.
    pub(super) password: String,
    /// The name is the id of a delegation token, and the password its secret.
    pub(super) is_by_token: bool,
}

/// Without the password.
impl fmt::Debug for Sasl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} as {}", self.mechanism.name(), self.username)
    }
}

impl Sasl {
    /// Proves it to a broker. Gives how long that holds, if not for as long as the connection is there.
    pub(super) async fn authenticate(
        &self,
        connection: &Connection,
    ) -> Result<Option<Duration>, ClientError> {
        let refused = |detail: String| ClientError::Authentication {
            address: connection.address().to_owned(),
            username: self.username.clone(),
            detail,
        };
        let request = SaslHandshakeRequest { mechanism: self.mechanism.name().into() };
        let response =
            connection.call_at_once(HANDSHAKE_VERSION_MIN, &request, ANSWER_WITHIN).await?;
        if !response.error_code.is_none() {
            let names: Vec<&str> = response.mechanisms.iter().map(|name| &**name).collect();
            let (code, names) = (response.error_code, names.join(", "));
            return Err(refused(format!("{code}; the broker offers {names}")));
        }
        match self.mechanism {
            Mechanism::Plain => {
                let message = ["", &self.username, &self.password].join("\0");
                self.exchange(connection, message.into(), &refused).await.map(lifetime_of)
            }
            Mechanism::Scram(hash) => {
                let nonce = meridian_runtime::entropy::entropy()
                    .map_err(|error| refused(format!("no entropy: {error}")))?;
                let who = match self.is_by_token {
                    true => ScramName::Token(&self.username),
                    false => ScramName::User(&self.username),
                };
                let scram = Scram::new(hash, who, &format!("{nonce:032x}"));
                let first = self.exchange(connection, scram.first().into(), &refused).await?;
                let answer = scram.answer(&self.password, &first.auth_bytes);
                let (last, server_proof) = answer.map_err(|it| refused(it.to_string()))?;
                let end = self.exchange(connection, last.into(), &refused).await?;
                let checked = server_proof.check(&end.auth_bytes);
                checked.map_err(|it| refused(it.to_string()))?;
                Ok(lifetime_of(end))
            }
            Mechanism::Oauth => {
                let message = format!("n,,\u{1}auth=Bearer {}\u{1}\u{1}", self.password);
                let said = self.exchange(connection, message.into(), &refused).await?;
                if said.auth_bytes.is_empty() {
                    return Ok(lifetime_of(said));
                }
                let dismissed = Bytes::from_static(TOKEN_DISMISSED);
                self.exchange(connection, dismissed, &refused).await?;
                Err(refused(String::from_utf8_lossy(&said.auth_bytes).into_owned()))
            }
        }
    }

    async fn exchange(
        &self,
        connection: &Connection,
        auth_bytes: Bytes,
        refused: &impl Fn(String) -> ClientError,
    ) -> Result<SaslAuthenticateResponse, ClientError> {
        let request = SaslAuthenticateRequest { auth_bytes };
        let response = connection.call_at_once(0, &request, ANSWER_WITHIN).await?;
        if response.error_code == ErrorCode::None {
            return Ok(response);
        }
        let said = response.error_message.map(|it| it.to_string()).unwrap_or_default();
        Err(refused(format!("{}: {said}", response.error_code)))
    }
}

/// How long the login holds (KIP-368).
fn lifetime_of(response: SaslAuthenticateResponse) -> Option<Duration> {
    let lifetime_ms = u64::try_from(response.session_lifetime_ms).ok()?;
    (lifetime_ms > 0).then(|| Duration::from_millis(lifetime_ms))
}
