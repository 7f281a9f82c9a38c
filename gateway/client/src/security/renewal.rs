//! Saying who we are again before our login ends, between two requests of the connection (KIP-368).
//!
//! **Source**: Java's `SaslClientAuthenticator`: nothing else is asked from the handshake on to the last answer, for Kafka's
//! brokers would close the connection.

use std::time::{Duration, Instant};

use tokio::sync::{RwLock, RwLockReadGuard};

use super::sasl::Sasl;
use crate::{ClientError, Connection, clock};

/// The share of a login's time after which it is renewed, in percent: Java takes 85 to 95.
const DUE_AFTER_PERCENT: u32 = 85;
/// No login is taken to hold longer.
const LIFETIME_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

/// A login that ends.
#[derive(Debug)]
pub(crate) struct Renewal {
    sasl: Sasl,
    due_at: RwLock<Instant>,
}

/// While there is one, nobody logs in.
pub(crate) type Turn<'a> = RwLockReadGuard<'a, Instant>;

impl Renewal {
    pub(super) fn new(sasl: Sasl, lifetime: Duration) -> Self {
        Self { sasl, due_at: RwLock::new(due_at(Some(lifetime))) }
    }

    /// Waits until a request may go out; logs in again first if that is due.
    pub(crate) async fn turn(&self, connection: &Connection) -> Result<Turn<'_>, ClientError> {
        loop {
            let turn = self.due_at.read().await;
            if clock::now() < *turn {
                return Ok(turn);
            }
            drop(turn);
            let mut due = self.due_at.write().await;
            // Another request may have seen to it.
            if clock::now() >= *due {
                let renewed = self.sasl.authenticate(connection).await;
                // A broker closes a connection whose login can't be renewed.
                *due = due_at(renewed.inspect_err(|_| connection.close())?);
            }
        }
    }
}

fn due_at(lifetime: Option<Duration>) -> Instant {
    let lifetime = lifetime.map_or(LIFETIME_MAX, |lifetime| lifetime.min(LIFETIME_MAX));
    clock::now() + lifetime * DUE_AFTER_PERCENT / 100
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use meridian_protocol::frame::{self, SIZE_PREFIX_BYTES};
    use meridian_protocol::messages::{
        ApiVersion, ApiVersionsResponse, MetadataRequest, MetadataResponse,
        SaslAuthenticateResponse, SaslHandshakeResponse,
    };
    use meridian_protocol::{ApiKey, Request, Response};
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::{TcpListener, TcpStream};

    use super::super::Security;
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);
    const APIS: [ApiKey; 4] =
        [ApiKey::ApiVersions, ApiKey::Metadata, ApiKey::SaslHandshake, ApiKey::SaslAuthenticate];

    /// What a broker was asked, in order.
    type Asked = Arc<Mutex<Vec<ApiKey>>>;

    /// A broker whose logins hold so long, one after the other.
    async fn serve(mut stream: TcpStream, asked: Asked, mut lifetimes_ms: Vec<i64>) {
        loop {
            let mut prefix = [0; SIZE_PREFIX_BYTES];
            if stream.read_exact(&mut prefix).await.is_err() {
                return;
            }
            let mut frame = vec![0; frame::frame_size(prefix, 1 << 20).expect("small")];
            stream.read_exact(&mut frame).await.expect("a request");
            let (header, request) = frame::decode_request(frame.into()).expect("a request");
            asked.lock().expect("no panic").push(header.api);
            let response: Response = match request {
                Request::ApiVersions(_) => {
                    let version = |api: ApiKey| ApiVersion {
                        api_key: api.key(),
                        min_version: *api.versions().start(),
                        max_version: *api.versions().end(),
                    };
                    let api_keys = APIS.map(version).to_vec();
                    ApiVersionsResponse { api_keys, ..Default::default() }.into()
                }
                Request::SaslHandshake(_) => SaslHandshakeResponse::default().into(),
                Request::SaslAuthenticate(_) => {
                    let session_lifetime_ms = lifetimes_ms.remove(0);
                    let auth_bytes = Default::default();
                    SaslAuthenticateResponse {
                        session_lifetime_ms,
                        auth_bytes,
                        ..Default::default()
                    }
                    .into()
                }
                _ => MetadataResponse::default().into(),
            };
            let encoded = frame::encode_response(header.version, header.correlation_id, &response);
            let bytes = encoded.expect("encodes").into_bytes();
            stream.write_all(&bytes).await.expect("the client reads");
        }
    }

    async fn connect(lifetimes_ms: Vec<i64>) -> (Connection, Asked) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("a port").to_string();
        let asked = Asked::default();
        let seen = Arc::clone(&asked);
        tokio::spawn(async move {
            let (stream, _) = listener.accept().await.expect("a client");
            serve(stream, seen, lifetimes_ms).await;
        });
        let options = [
            ("security.protocol", "SASL_PLAINTEXT"),
            ("sasl.mechanism", "PLAIN"),
            ("sasl.username", "al"),
            ("sasl.password", "hush"),
        ];
        let options = options.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let security = Security::parse(&options).expect("options");
        let connection = Connection::open_secured(&address, &security).await.expect("a login");
        (connection, asked)
    }

    async fn ask(connection: &Connection) {
        connection.call(&MetadataRequest::default(), PATIENCE).await.expect("an answer");
    }

    fn login_count(asked: &Asked) -> usize {
        asked.lock().expect("no panic").iter().filter(|api| **api == ApiKey::SaslHandshake).count()
    }

    #[tokio::test]
    async fn a_login_that_ends_is_renewed_between_two_requests() {
        let (connection, asked) = connect(vec![1, 3_600_000]).await;
        let due_at = clock::now() + PATIENCE;
        while login_count(&asked) < 2 {
            assert!(clock::now() < due_at, "it was not renewed");
            let ask = || ask(&connection);
            tokio::join!(ask(), ask(), ask(), ask());
        }
        ask(&connection).await;
        assert_eq!(login_count(&asked), 2, "the second holds for an hour");
        let asked = asked.lock().expect("no panic");
        for pair in asked.windows(2).filter(|pair| pair[0] == ApiKey::SaslHandshake) {
            assert_eq!(pair[1], ApiKey::SaslAuthenticate, "{asked:?}");
        }
    }

    #[tokio::test]
    async fn a_login_without_an_end_is_not_renewed() {
        let (connection, asked) = connect(vec![0]).await;
        ask(&connection).await;
        assert_eq!(login_count(&asked), 1);
    }
}
