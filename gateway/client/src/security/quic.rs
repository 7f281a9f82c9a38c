//! Links to a meridian cluster: QUIC, with a certificate on each side. Each connection of the protocol is a
//! stream, so that a lost packet holds up its own stream only, and a new one costs no round trip.

use std::collections::HashMap;
use std::fmt;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use meridian_base::sync::lock;
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ConnectionError, IdleTimeout, VarInt};
use rustls::pki_types::PrivateKeyDer;
use rustls::pki_types::pem::PemObject;
use tokio::task::JoinSet;

use super::tls::{AnyHost, Pem, certificates, verifier};
use super::{Reader, SecurityError, Writer};
use crate::ClientError;
use crate::connection::NEXT_ATTEMPT_AFTER;
use meridian_runtime::tls::link_client_config;

/// In the handshake, where a host would be named: any node of the source is meant.
const NAME: &str = "source.meridian";
/// A source that is not heard of for so long is dialled anew.
const IDLE_TIMEOUT: Duration = Duration::from_secs(3);
const KEEP_ALIVE_INTERVAL: Duration = Duration::from_millis(700);
// Windows are bandwidth x round trip: 16 MiB per stream carries 1.6 Gbit/s at 80 ms.
const STREAM_WINDOW_BYTES: u32 = 16 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 64 << 20;
/// A first guess, until the handshake has measured the way: it times its retransmissions.
const INITIAL_RTT: Duration = Duration::from_millis(150);

/// How QUIC connections are made, and those that are open. Clones share both.
#[derive(Clone)]
pub(super) struct Quic {
    config: quinn::ClientConfig,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// The sockets, one for each family of addresses, once they were needed.
    endpoints: Mutex<[Option<quinn::Endpoint>; 2]>,
    places: Mutex<HashMap<String, Place>>,
}

/// The connection to an address. Who finds it locked waits for another's attempt.
type Place = Arc<tokio::sync::Mutex<Option<quinn::Connection>>>;

impl fmt::Debug for Quic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("QUIC")
    }
}

impl Quic {
    /// `own` of `pem` is needed.
    pub(super) fn new(pem: &Pem<'_>) -> Result<Self, SecurityError> {
        let unusable = |name, detail: String| SecurityError::Unusable { name, detail };
        let (chain, key) = pem.own.unwrap_or_default();
        let chain = certificates("ssl.certificate.pem", chain)?;
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes())
            .map_err(|error| unusable("ssl.key.pem", error.to_string()))?;
        let (verifier, _) = verifier(pem.ca)?;
        let crypto = link_client_config(Arc::new(AnyHost(verifier)), chain, key)
            .map_err(|error| unusable("ssl.key.pem", error.to_string()))?;
        let crypto = QuicClientConfig::try_from(crypto)
            .map_err(|error| unusable("ssl.key.pem", error.to_string()))?;
        let mut transport = quinn::TransportConfig::default();
        transport
            .max_concurrent_bidi_streams(VarInt::from_u32(0))
            .max_concurrent_uni_streams(VarInt::from_u32(0))
            .datagram_receive_buffer_size(None)
            .stream_receive_window(VarInt::from_u32(STREAM_WINDOW_BYTES))
            .receive_window(VarInt::from_u32(CONNECTION_WINDOW_BYTES))
            .initial_rtt(INITIAL_RTT)
            .keep_alive_interval(Some(KEEP_ALIVE_INTERVAL))
            .max_idle_timeout(IdleTimeout::try_from(IDLE_TIMEOUT).ok());
        let mut config = quinn::ClientConfig::new(Arc::new(crypto));
        config.transport_config(Arc::new(transport));
        Ok(Self { config, shared: Arc::default() })
    }

    /// A stream to a node.
    pub(super) async fn open(&self, address: &str) -> Result<(Reader, Writer), ClientError> {
        let failed = |error: ConnectionError| self.failed(address, error);
        let connection = self.connection(address).await?;
        let (send, receive) = connection.open_bi().await.map_err(failed)?;
        Ok((Box::new(receive), Box::new(send)))
    }

    /// An error of a new stream, or why the other side wanted nothing of us.
    pub(super) async fn explained(&self, address: &str, error: ClientError) -> ClientError {
        let place = self.place(address);
        let reason = place.lock().await.as_ref().and_then(quinn::Connection::close_reason);
        match reason {
            Some(reason) if is_refusal(&reason) => self.failed(address, reason),
            _ => error,
        }
    }

    fn place(&self, address: &str) -> Place {
        let mut places = lock(&self.shared.places);
        Arc::clone(places.entry(address.to_owned()).or_default())
    }

    async fn connection(&self, address: &str) -> Result<quinn::Connection, ClientError> {
        let place = self.place(address);
        let mut place = place.lock().await;
        if let Some(open) = place.as_ref().filter(|open| open.close_reason().is_none()) {
            return Ok(open.clone());
        }
        let connect = |source| ClientError::Connect { address: address.to_owned(), source };
        let found = tokio::net::lookup_host(address).await.map_err(connect)?;
        let connection = self.dial(address, &found.collect::<Vec<_>>()).await?;
        *place = Some(connection.clone());
        Ok(connection)
    }

    fn endpoint(&self, to: SocketAddr) -> std::io::Result<quinn::Endpoint> {
        let mut endpoints = lock(&self.shared.endpoints);
        let (place, any) = match to {
            SocketAddr::V4(_) => (&mut endpoints[0], SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0))),
            SocketAddr::V6(_) => (&mut endpoints[1], SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0))),
        };
        if let Some(open) = place {
            return Ok(open.clone());
        }
        let endpoint = quinn::Endpoint::client(any)?;
        *place = Some(endpoint.clone());
        Ok(endpoint)
    }

    /// A socket that was lost is not used again.
    fn forget_endpoint(&self, to: SocketAddr) {
        let mut endpoints = lock(&self.shared.endpoints);
        endpoints[usize::from(to.is_ipv6())] = None;
    }

    /// Connects. Lost packets do not hold it up for long: another attempt begins meanwhile, at the next of the
    /// addresses, and whichever is first is taken. Ends with an error when each address was tried, or says
    /// that we are not wanted.
    async fn dial(
        &self,
        address: &str,
        found: &[SocketAddr],
    ) -> Result<quinn::Connection, ClientError> {
        let mut attempts = JoinSet::new();
        for (count, to) in found.iter().copied().cycle().enumerate() {
            let (quic, address) = (self.clone(), address.to_owned());
            attempts.spawn(async move { quic.attempt(&address, to).await });
            match tokio::time::timeout(NEXT_ATTEMPT_AFTER, attempts.join_next()).await {
                Ok(Some(Ok(Err(ClientError::Connect { .. })))) if count + 1 < found.len() => {}
                Ok(Some(Ok(ended))) => return ended,
                Ok(Some(Err(panic))) => std::panic::resume_unwind(panic.into_panic()),
                Ok(None) | Err(_) => {}
            }
        }
        let source = std::io::ErrorKind::NotFound.into();
        Err(ClientError::Connect { address: address.to_owned(), source })
    }

    async fn attempt(
        &self,
        address: &str,
        to: SocketAddr,
    ) -> Result<quinn::Connection, ClientError> {
        let connect = |source| ClientError::Connect { address: address.to_owned(), source };
        let endpoint = self.endpoint(to).map_err(connect)?;
        let connecting = endpoint.connect_with(self.config.clone(), to, NAME).map_err(|error| {
            if matches!(error, quinn::ConnectError::EndpointStopping) {
                self.forget_endpoint(to);
            }
            connect(std::io::Error::other(error))
        })?;
        connecting.await.map_err(|error| self.failed(address, error))
    }

    fn failed(&self, address: &str, error: ConnectionError) -> ClientError {
        match error {
            refusal if is_refusal(&refusal) => tls(address, refusal.to_string()),
            error => {
                let source = std::io::Error::new(std::io::ErrorKind::TimedOut, error);
                ClientError::Connect { address: address.to_owned(), source }
            }
        }
    }
}

fn tls(address: &str, detail: String) -> ClientError {
    ClientError::Tls { address: address.to_owned(), detail }
}

/// Whether one side has found something wrong with the other, rather than lost it.
fn is_refusal(error: &ConnectionError) -> bool {
    match error {
        ConnectionError::TransportError(_) | ConnectionError::ConnectionClosed(_) => true,
        // 0 is how a node ends in good order.
        ConnectionError::ApplicationClosed(close) => close.error_code != VarInt::from_u32(0),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use meridian_base::id::{ClusterId, NodeId};
    use quinn::crypto::rustls::QuicServerConfig;
    use rustls::client::danger::ServerCertVerifier;
    use rustls::pki_types::{ServerName, UnixTime};

    use super::*;
    use crate::clock;
    use meridian_runtime::tls::{ClusterCa, Validity};

    #[test]
    fn a_links_certificate_does_not_stand_for_a_node() {
        let validity = Validity::days(clock::wall_time(), 10);
        let ca = ClusterCa::create(&ClusterId::from_text("west"), validity).unwrap();
        let node = ca.issue(NodeId::new(1), validity).unwrap();
        let link = ca.issue_link("east", validity).unwrap();
        let any_host = AnyHost(verifier(&node.ca_pem).unwrap().0);
        let is_source = |pem: &str| {
            let leaf = certificates("ssl.certificate.pem", pem).unwrap().remove(0);
            let name = ServerName::try_from(NAME).unwrap();
            any_host.verify_server_cert(&leaf, &[], &name, &[], UnixTime::now()).is_ok()
        };
        assert!(is_source(&node.cert_chain_pem));
        assert!(!is_source(&link.cert_chain_pem));
    }

    #[tokio::test]
    async fn a_name_may_have_addresses_that_nobody_serves() {
        let cluster = ClusterId::from_text("west");
        let validity = Validity::days(clock::wall_time(), 10);
        let ca = ClusterCa::create(&cluster, validity).unwrap();
        let node = ca.issue(NodeId::new(1), validity).unwrap();
        let node = node.check(NodeId::new(1), &cluster, clock::wall_time()).unwrap();
        let crypto = QuicServerConfig::try_from(node.link_server_config().unwrap()).unwrap();
        let config = quinn::ServerConfig::with_crypto(Arc::new(crypto));
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let server = quinn::Endpoint::server(config, any).unwrap();
        let live = server.local_addr().unwrap();
        let silent = std::net::UdpSocket::bind(any).unwrap();
        let served = tokio::spawn(async move { server.accept().await.unwrap().await.unwrap() });
        let link = ca.issue_link("east", validity).unwrap();
        let own = Some((&*link.cert_chain_pem, &*link.key_pem));
        let quic = Quic::new(&Pem { ca: &link.ca_pem, own }).unwrap();
        let found = [silent.local_addr().unwrap(), live];
        let connection = quic.dial("source:9092", &found).await.unwrap();
        assert_eq!(connection.remote_address(), live);
        drop(served);
    }
}
