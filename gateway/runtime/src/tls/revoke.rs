//! Certificates that the cluster's authority takes back before they end: a list that it signs (CRL).

use std::path::Path;
use std::time::{Duration, SystemTime};

use rcgen::{
    CertificateRevocationListParams, KeyIdMethod, RevocationReason, RevokedCertParams, SerialNumber,
};
use rustls::pki_types::CertificateRevocationListDer;
use rustls::pki_types::pem::PemObject as _;
use x509_parser::certificate::X509Certificate;
use x509_parser::prelude::FromDer as _;
use x509_parser::revocation_list::CertificateRevocationList;

use super::{ClusterCa, TlsError, parse_certificate, read_file, write_file};

/// In the folder of the authority, and in `tls.folder` of each node.
pub const REVOKED_FILE: &str = "crl.pem";
/// A list says when the next one comes. None has to come: nodes take a list for good until they are given another.
const NEXT_LIST_AFTER: Duration = Duration::from_secs(10 * 365 * 24 * 3600);
/// Of a certificate's serial number, by RFC 5280.
const SERIAL_BYTES_MAX: usize = 20;

/// The serial number of a certificate.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Serial(Vec<u8>);

impl Serial {
    /// Without the zero that says that the number is positive.
    fn of(bytes: &[u8]) -> Self {
        let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
        Self(bytes[zeros..].to_vec())
    }

    /// Of the first certificate of a file.
    pub fn of_file(path: &Path) -> Result<Self, TlsError> {
        let certificate = parse_certificate("certificate", &read_file(path)?)?;
        let (_, certificate) = X509Certificate::from_der(&certificate)
            .map_err(|error| TlsError::Serial { text: format!("{}: {error}", path.display()) })?;
        Ok(Self::of(certificate.raw_serial()))
    }

    /// Reads hexadecimal digits, with or without colons, as OpenSSL and Java print them.
    pub fn parse(text: &str) -> Result<Self, TlsError> {
        let refused = || TlsError::Serial { text: text.to_owned() };
        let digits: Option<Vec<u8>> = text
            .chars()
            .filter(|letter| *letter != ':')
            .map(|digit| digit.to_digit(16).and_then(|digit| u8::try_from(digit).ok()))
            .collect();
        let mut digits = digits.ok_or_else(refused)?;
        if digits.len() % 2 == 1 {
            digits.insert(0, 0);
        }
        let bytes: Vec<u8> =
            digits.chunks(2).map(|pair| pair.iter().fold(0, |n, d| n * 16 + d)).collect();
        let serial = Self::of(&bytes);
        match serial.0.len() {
            1..=SERIAL_BYTES_MAX => Ok(serial),
            _ => Err(refused()),
        }
    }
}

impl std::fmt::Display for Serial {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl ClusterCa {
    /// Adds certificates to the list `crl.pem` in `folder`, and makes the list if there is none. Says how many are in
    /// it.
    pub fn revoke(
        &self,
        folder: &Path,
        serials: &[Serial],
        now: SystemTime,
    ) -> Result<usize, TlsError> {
        let path = folder.join(REVOKED_FILE);
        let (mut revoked, number) = match path.exists() {
            true => self.revoked(&read_file(&path)?)?,
            false => (Vec::new(), 0),
        };
        for serial in serials {
            if !revoked.iter().any(|(known, _)| known == serial) {
                revoked.push((serial.clone(), now));
            }
        }
        let issue = |source| TlsError::Issue {
            subject: "a list of revoked certificates".to_owned(),
            source,
        };
        let entry = |(serial, revoked_at): &(Serial, SystemTime)| RevokedCertParams {
            serial_number: SerialNumber::from_slice(&serial.0),
            revocation_time: (*revoked_at).into(),
            reason_code: Some(RevocationReason::Unspecified),
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: now.into(),
            next_update: (now + NEXT_LIST_AFTER).into(),
            crl_number: SerialNumber::from(number + 1),
            issuing_distribution_point: None,
            revoked_certs: revoked.iter().map(entry).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let pem = params.signed_by(&self.issuer).and_then(|list| list.pem()).map_err(issue)?;
        write_file(&path, &pem, 0o644)?;
        Ok(revoked.len())
    }

    /// What is in a list of this authority, and the number of the list.
    fn revoked(&self, pem: &str) -> Result<(Vec<(Serial, SystemTime)>, u64), TlsError> {
        let refused = |detail: String| TlsError::RevokedList { detail };
        let authority = parse_certificate("authority certificate", &self.certificate_pem)?;
        let (_, authority) =
            X509Certificate::from_der(&authority).map_err(|error| refused(error.to_string()))?;
        let (mut revoked, mut number) = (Vec::new(), 0);
        for list in CertificateRevocationListDer::pem_slice_iter(pem.as_bytes()) {
            let list = list.map_err(|source| TlsError::Pem { what: REVOKED_FILE, source })?;
            let (_, list) = CertificateRevocationList::from_der(&list)
                .map_err(|error| refused(error.to_string()))?;
            if list.verify_signature(authority.public_key()).is_err() {
                return Err(refused(format!(
                    "{} has signed it, and not this authority",
                    list.issuer()
                )));
            }
            let digits = list.crl_number().map(|number| number.to_u64_digits());
            number = number.max(digits.and_then(|digits| digits.first().copied()).unwrap_or(0));
            for entry in list.iter_revoked_certificates() {
                let serial = Serial::of(entry.raw_serial());
                let at = u64::try_from(entry.revocation_date.timestamp()).unwrap_or(0);
                revoked.push((serial, SystemTime::UNIX_EPOCH + Duration::from_secs(at)));
            }
        }
        Ok((revoked, number))
    }
}
