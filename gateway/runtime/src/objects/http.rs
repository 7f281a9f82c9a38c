//! HTTP/1.1 for the object store, over TCP or TLS: a few connections that are kept, answers in memory.
//!
//! The client that `object_store` brings along would double the dependencies of the whole project; requests to
//! one server, each with one answer of a few MiB, need little of it.

use std::error::Error;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use http_body_util::{BodyExt, Limited};
use hyper::client::conn::http1::{self, SendRequest};
use hyper::header::{HOST, HeaderValue};
use hyper::rt::{Read, Write};
use hyper::{Request, Uri};
use hyper_util::rt::TokioIo;
use meridian_base::sync::lock;
use object_store::ClientOptions;
use object_store::client::{
    HttpClient, HttpConnector, HttpError, HttpErrorKind, HttpRequest, HttpRequestBody,
    HttpResponse, HttpService,
};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::ObjectError;

/// A connection that does not stand by then is given up.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// An exchange that is not over by then is.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);
/// Connections kept for the next request.
const IDLE_COUNT_MAX: usize = 8;
/// No answer is larger: objects are some 8 MiB, pages of lists less than one.
const ANSWER_SIZE_BYTES_MAX: usize = 64 << 20;

type Connection = SendRequest<HttpRequestBody>;

/// Makes clients.
#[derive(Debug)]
pub(super) struct Http {
    tls: Arc<ClientConfig>,
}

impl Http {
    /// Trusts the certificates in `ca`, or else those that the system trusts.
    pub(super) fn new(ca: Option<&Path>) -> Result<Self, ObjectError> {
        let mut roots = RootCertStore::empty();
        match ca {
            Some(file) => {
                let refused =
                    |error: &dyn Error| ObjectError::Ca(format!("{}: {error}", file.display()));
                for certificate in CertificateDer::pem_file_iter(file).map_err(|it| refused(&it))? {
                    let certificate = certificate.map_err(|it| refused(&it))?;
                    roots.add(certificate).map_err(|it| refused(&it))?;
                }
            }
            // Without any, only plain HTTP works; what fails then says so.
            None => {
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            }
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| ObjectError::Ca(error.to_string()))?
            .with_root_certificates(roots)
            .with_no_client_auth();
        Ok(Self { tls: Arc::new(tls) })
    }
}

impl HttpConnector for Http {
    fn connect(&self, _options: &ClientOptions) -> object_store::Result<HttpClient> {
        let (tls, idle) = (Arc::clone(&self.tls), Mutex::default());
        Ok(HttpClient::new(Connections { tls, idle }))
    }
}

/// The connections of one client.
#[derive(Debug)]
struct Connections {
    tls: Arc<ClientConfig>,
    idle: Mutex<Vec<(Target, Connection)>>,
}

/// Whom a connection leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Target {
    is_tls: bool,
    host: String,
    port: u16,
}

#[async_trait]
impl HttpService for Connections {
    async fn call(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let exchange = tokio::time::timeout(ANSWER_WITHIN, self.exchange(request));
        exchange.await.map_err(|late| HttpError::new(HttpErrorKind::Timeout, late))?
    }
}

impl Connections {
    async fn exchange(&self, request: HttpRequest) -> Result<HttpResponse, HttpError> {
        let target = Target::of(request.uri())?;
        let mut connection = match self.take_idle(&target) {
            Some(connection) => connection,
            None => self.dial(&target).await?,
        };
        let answer = connection.send_request(to_origin_form(request)?).await.map_err(broken)?;
        let (head, body) = answer.into_parts();
        let body = Limited::new(body, ANSWER_SIZE_BYTES_MAX).collect().await;
        let body = body.map_err(|error| HttpError::new_boxed(HttpErrorKind::Interrupted, error))?;
        self.keep(target, connection);
        Ok(HttpResponse::from_parts(head, body.to_bytes().into()))
    }

    fn take_idle(&self, target: &Target) -> Option<Connection> {
        let mut idle = lock(&self.idle);
        idle.retain(|(_, connection)| connection.is_ready());
        let found = idle.iter().rposition(|(known, _)| known == target)?;
        Some(idle.swap_remove(found).1)
    }

    fn keep(&self, target: Target, connection: Connection) {
        let mut idle = lock(&self.idle);
        if idle.len() < IDLE_COUNT_MAX {
            idle.push((target, connection));
        }
    }

    async fn dial(&self, target: &Target) -> Result<Connection, HttpError> {
        let dialling = async {
            let stream = TcpStream::connect((target.host.as_str(), target.port)).await;
            let stream = stream.map_err(refused)?;
            stream.set_nodelay(true).map_err(refused)?;
            if !target.is_tls {
                return handshake(TokioIo::new(stream)).await;
            }
            let name = ServerName::try_from(target.host.clone()).map_err(refused)?;
            let connector = TlsConnector::from(Arc::clone(&self.tls));
            let stream = connector.connect(name, stream).await.map_err(refused)?;
            handshake(TokioIo::new(stream)).await
        };
        let dialled = tokio::time::timeout(CONNECT_WITHIN, dialling);
        dialled.await.map_err(refused)?
    }
}

/// Begins to speak HTTP; a task carries the bytes until the connection ends.
async fn handshake<T>(stream: T) -> Result<Connection, HttpError>
where
    T: Read + Write + Unpin + Send + 'static,
{
    let (connection, bytes) = http1::handshake(stream).await.map_err(refused)?;
    tokio::spawn(async move {
        if let Err(error) = bytes.await {
            tracing::debug!(%error, "a connection to the object store has broken");
        }
    });
    Ok(connection)
}

impl Target {
    fn of(uri: &Uri) -> Result<Self, HttpError> {
        let is_tls = uri.scheme_str() == Some("https");
        let Some(host) = uri.host() else {
            return Err(unusable(std::io::Error::other(format!("{uri} names no host"))));
        };
        let port = uri.port_u16().unwrap_or(if is_tls { 443 } else { 80 });
        // As in RFC 3986, an IPv6 address stands in brackets.
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        Ok(Self { is_tls, host, port })
    }
}

/// A server is asked for a path, and told by a header which host is meant (RFC 9112, 3.2.1).
fn to_origin_form(request: HttpRequest) -> Result<Request<HttpRequestBody>, HttpError> {
    let (mut head, body) = request.into_parts();
    if let Some(authority) = head.uri.authority()
        && !head.headers.contains_key(HOST)
    {
        let host = HeaderValue::from_str(authority.as_str()).map_err(unusable)?;
        head.headers.insert(HOST, host);
    }
    let path = head.uri.path_and_query().map_or("/", |path| path.as_str());
    head.uri = path.parse().map_err(unusable)?;
    Ok(Request::from_parts(head, body))
}

fn unusable(error: impl Error + Send + Sync + 'static) -> HttpError {
    HttpError::new(HttpErrorKind::Unknown, error)
}

fn refused(error: impl Error + Send + Sync + 'static) -> HttpError {
    HttpError::new(HttpErrorKind::Connect, error)
}

/// Whether the server has seen the request is not known: what may be sent twice is.
fn broken(error: hyper::Error) -> HttpError {
    HttpError::new(HttpErrorKind::Interrupted, error)
}
