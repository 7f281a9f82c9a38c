//! TLS towards a broker: its certificate must be of the given authority and, unless that is turned
//! off, of the host that was dialled.

use std::fmt;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring as provider};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::SecurityError;
use crate::ClientError;

/// Certificates and keys as PEM text.
pub(super) struct Pem<'o> {
    /// The authority of the brokers.
    pub(super) ca: &'o str,
    /// Our certificate chain and its key.
    pub(super) own: Option<(&'o str, &'o str)>,
}

/// How TLS connections are made.
#[derive(Clone)]
pub(super) struct Tls {
    connector: TlsConnector,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("TLS")
    }
}

pub(super) fn certificates(
    name: &'static str,
    pem: &str,
) -> Result<Vec<CertificateDer<'static>>, SecurityError> {
    let unusable = |detail: String| SecurityError::Unusable { name, detail };
    let certificates: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem.as_bytes()).collect();
    let certificates = certificates.map_err(|error| unusable(error.to_string()))?;
    match certificates.is_empty() {
        true => Err(unusable("no certificate in PEM form".to_owned())),
        false => Ok(certificates),
    }
}

/// Judges certificates by the authorities in a PEM text.
pub(super) fn verifier(
    ca: &str,
) -> Result<(Arc<WebPkiServerVerifier>, Arc<CryptoProvider>), SecurityError> {
    let unusable = |detail: String| SecurityError::Unusable { name: "ssl.ca.pem", detail };
    let mut roots = RootCertStore::empty();
    for certificate in certificates("ssl.ca.pem", ca)? {
        roots.add(certificate).map_err(|error| unusable(error.to_string()))?;
    }
    let crypto = Arc::new(provider::default_provider());
    let verifier =
        WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&crypto))
            .build()
            .map_err(|error| unusable(error.to_string()))?;
    Ok((verifier, crypto))
}

impl Tls {
    pub(super) fn new(pem: Pem<'_>, checks_host: bool) -> Result<Self, SecurityError> {
        let unusable = |name, detail: String| SecurityError::Unusable { name, detail };
        let (verifier, crypto) = verifier(pem.ca)?;
        let builder = ClientConfig::builder_with_provider(crypto)
            .with_safe_default_protocol_versions()
            .map_err(|error| unusable("ssl.ca.pem", error.to_string()))?;
        let builder = match checks_host {
            true => builder.with_webpki_verifier(verifier),
            false => {
                builder.dangerous().with_custom_certificate_verifier(Arc::new(AnyHost(verifier)))
            }
        };
        let config = match pem.own {
            None => builder.with_no_client_auth(),
            Some((chain, key)) => {
                let chain = certificates("ssl.certificate.pem", chain)?;
                let key = PrivateKeyDer::from_pem_slice(key.as_bytes())
                    .map_err(|error| unusable("ssl.key.pem", error.to_string()))?;
                builder
                    .with_client_auth_cert(chain, key)
                    .map_err(|error| unusable("ssl.key.pem", error.to_string()))?
            }
        };
        Ok(Self { connector: TlsConnector::from(Arc::new(config)) })
    }

    /// Makes a new TCP connection a TLS one.
    pub(super) async fn connect(
        &self,
        address: &str,
        stream: TcpStream,
    ) -> Result<TlsStream<TcpStream>, ClientError> {
        let failed = |detail: String| ClientError::Tls { address: address.to_owned(), detail };
        let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
        let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
        let name = ServerName::try_from(host).map_err(|error| failed(error.to_string()))?;
        self.connector.connect(name, stream).await.map_err(|error| failed(error.to_string()))
    }
}

/// Takes certificates of the right authority whatever host they name.
#[derive(Debug)]
pub(super) struct AnyHost(pub(super) Arc<WebPkiServerVerifier>);

impl ServerCertVerifier for AnyHost {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let verified =
            self.0.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match verified {
            // The name is what is compared last.
            Err(Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.0.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.supported_verify_schemes()
    }
}
