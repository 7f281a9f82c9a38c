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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use meridian_base::id::ClusterId;
    use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, KeyPair};
    use rustls::crypto::ring as provider;
    use rustls::pki_types::{CertificateDer, UnixTime};

    use super::*;
    use crate::clock;
    use crate::tls::Validity;
    use crate::tls::trust::{Pem, Trust};

    fn authority() -> ClusterCa {
        let validity = Validity::days(clock::wall_time(), 10);
        ClusterCa::create(&ClusterId::from_text("one"), validity).unwrap()
    }

    fn folder(name: &str) -> std::path::PathBuf {
        let name = format!("meridian-revoke-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        path
    }

    fn issue(authority: &ClusterCa, serial: Option<&[u8]>) -> CertificateDer<'static> {
        let mut params = CertificateParams::new(["a.example".to_owned()]).unwrap();
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.serial_number = serial.map(SerialNumber::from_slice);
        let key = KeyPair::generate().unwrap();
        params.signed_by(&key, &authority.issuer).unwrap().der().clone()
    }

    fn trust(authorities: &str, lists: &str) -> Result<Trust, TlsError> {
        let (authorities, lists) = (
            Pem { text: authorities, path: Path::new("a") },
            Pem { text: lists, path: Path::new("l") },
        );
        Trust::new(authorities, Some(lists), true, &Arc::new(provider::default_provider()))
    }

    fn serial(certificate: &CertificateDer<'_>) -> Serial {
        Serial::of(X509Certificate::from_der(certificate).unwrap().1.raw_serial())
    }

    #[test]
    fn whatever_a_serial_number_is_it_is_found_in_the_list() {
        let (authority, folder) = (authority(), folder("serials"));
        let serials: [Option<&[u8]>; 6] = [
            None,
            Some(&[1]),
            Some(&[0x80]),
            Some(&[0, 0xff, 0]),
            Some(&[0x7f; 20]),
            Some(&[0xff; 20]),
        ];
        let issued = serials.map(|serial| issue(&authority, serial));
        let others = [issue(&authority, None), issue(&authority, Some(&[2]))];
        for (count, certificate) in issued.iter().enumerate() {
            let serial = serial(certificate);
            assert_eq!(Serial::parse(&serial.to_string()).unwrap(), serial);
            let twice = [serial.clone(), serial];
            let now = clock::wall_time();
            assert_eq!(authority.revoke(&folder, &twice, now).unwrap(), count + 1);
        }
        let list = read_file(&folder.join(REVOKED_FILE)).unwrap();
        let (known, number) = authority.revoked(&list).unwrap();
        assert_eq!((known.len(), number), (issued.len(), issued.len() as u64));
        let trust = trust(&authority.certificate_pem, &list).unwrap();
        let is_revoked = |it: &CertificateDer<'static>| {
            trust.is_revoked(std::slice::from_ref(it), UnixTime::now())
        };
        assert!(issued.iter().all(is_revoked));
        assert!(!others.iter().any(is_revoked));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn serial_numbers_are_read_as_they_are_printed() {
        for (text, read) in [
            ("01:ff", "01ff"),
            ("1FF", "01ff"),
            ("00:80", "80"),
            ("7f", "7f"),
            (&"f".repeat(40), &"f".repeat(40)),
        ] {
            assert_eq!(Serial::parse(text).unwrap().to_string(), read);
        }
        for text in ["", "0", ":", "link.pem", "0x1", &"f".repeat(41)] {
            assert!(matches!(Serial::parse(text), Err(TlsError::Serial { .. })), "{text}");
        }
    }

    /// An authority that replaces another has its name. The list of each is for what that one has issued.
    #[test]
    fn two_authorities_of_one_name_have_a_list_each() {
        let (old, new) = (authority(), authority());
        let (of_old, of_new) = (folder("old"), folder("new"));
        let both = format!("{}{}", old.certificate_pem, new.certificate_pem);
        let issued = [
            issue(&old, Some(&[1])),
            issue(&old, Some(&[2])),
            issue(&new, Some(&[1])),
            issue(&new, Some(&[2])),
        ];
        let now = clock::wall_time();
        old.revoke(&of_old, &[Serial::parse("1").unwrap()], now).unwrap();
        new.revoke(&of_new, &[Serial::parse("2").unwrap()], now).unwrap();
        let read = |folder: &Path| read_file(&folder.join(REVOKED_FILE)).unwrap();
        let (list_of_old, list_of_new) = (read(&of_old), read(&of_new));
        let revoked = |lists: &str| {
            let trust = trust(&both, lists).unwrap();
            let is_revoked = |it: &CertificateDer<'static>| {
                let verified = trust.is_revoked(std::slice::from_ref(it), UnixTime::now());
                let is_let_in = rustls::server::danger::ClientCertVerifier::verify_client_cert(
                    &trust,
                    it,
                    &[],
                    UnixTime::now(),
                );
                assert_eq!(verified, is_let_in.is_err(), "revoked, or let in");
                verified
            };
            issued.iter().map(is_revoked).collect::<Vec<_>>()
        };
        assert_eq!(revoked(&list_of_old), [true, false, false, false]);
        assert_eq!(revoked(&format!("{list_of_old}{list_of_new}")), [true, false, false, true]);
        assert_eq!(revoked(&format!("{list_of_new}{list_of_old}")), [true, false, false, true]);

        // A later list of an authority holds, wherever it is in the file.
        old.revoke(&of_old, &[Serial::parse("2").unwrap()], now + Duration::from_secs(60)).unwrap();
        let later = read(&of_old);
        assert_eq!(revoked(&format!("{list_of_old}{later}")), [true, true, false, false]);
        let refused = trust(&new.certificate_pem, &list_of_old);
        let said = refused.expect_err("another authority has signed it").to_string();
        assert!(said.starts_with("l: the list of revoked certificates is of no use"), "{said}");
        assert!(matches!(new.revoke(&of_old, &[], now), Err(TlsError::RevokedList { .. })));
        [of_old, of_new].iter().for_each(|folder| std::fs::remove_dir_all(folder).unwrap());
    }
}
