use std::env;
use std::process;

use super::*;

const NODE: NodeId = NodeId::new(7);

fn cluster() -> ClusterId {
    ClusterId::from_text("Zm9v-_BAR_baz0123456789")
}

fn now() -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(1_800_000_000)
}

fn ca(cluster: &ClusterId) -> ClusterCa {
    ClusterCa::create(cluster, Validity::days(now(), 10)).unwrap()
}

/// A folder that goes away with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = env::temp_dir().join(format!("meridian-tls-{name}-{}", process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _best_effort = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn an_issued_identity_passes_its_check() {
    let identity = ca(&cluster()).issue(NODE, Validity::days(now(), 5)).unwrap();
    let credentials = identity.check(NODE, &cluster(), now()).unwrap();
    assert_eq!(credentials.cluster(), &cluster());
    credentials.server_config().unwrap();
    credentials.client_config().unwrap();
}

#[test]
fn a_links_certificate_is_no_nodes_and_the_other_way_round() {
    let ca = ca(&cluster());
    let validity = Validity::days(now(), 5);
    let leaf = |pem: &str| parse_certificate("certificate", pem).unwrap();
    let link = leaf(&ca.issue_link("east", validity).unwrap().cert_chain_pem);
    let node = leaf(&ca.issue(NODE, validity).unwrap().cert_chain_pem);
    assert_eq!(link_of(&link, &cluster()).unwrap(), "east");
    assert!(matches!(node_of(&link, &cluster()), Err(TlsError::NotANode { .. })));
    assert!(matches!(link_of(&node, &cluster()), Err(TlsError::NotALink)));
    let other = ClusterId::from_text("other");
    assert!(matches!(link_of(&link, &other), Err(TlsError::WrongCluster { .. })));
    for illegal in ["", "East", "a.b", "east-", &"x".repeat(59)] {
        assert!(matches!(ca.issue_link(illegal, validity), Err(TlsError::LinkName { .. })));
    }
}

#[test]
fn an_identity_of_another_node_cluster_or_authority_fails_its_check() {
    let identity = ca(&cluster()).issue(NODE, Validity::days(now(), 5)).unwrap();
    let other_node = identity.check(NodeId::new(8), &cluster(), now());
    assert!(matches!(other_node, Err(TlsError::WrongNode { found: NODE, .. })));

    let other = ClusterId::from_text("other");
    match identity.check(NODE, &other, now()).err() {
        Some(TlsError::WrongCluster { found, expected }) => {
            assert_eq!((found.as_str(), &expected), (cluster().as_str(), &other));
        }
        result => panic!("{result:?}"),
    }

    let ca_pem = ca(&cluster()).certificate_pem;
    let other_ca = NodeIdentity { ca_pem, ..identity }.check(NODE, &cluster(), now());
    assert!(matches!(other_ca, Err(TlsError::NotTrusted { .. })));
}

#[test]
fn cluster_ids_that_differ_only_in_case_differ() {
    let identity = ca(&ClusterId::from_text("abc")).issue(NODE, Validity::days(now(), 5)).unwrap();
    let result = identity.check(NODE, &ClusterId::from_text("aBc"), now());
    assert!(matches!(result, Err(TlsError::WrongCluster { .. })));
}

#[test]
fn a_certificate_holds_from_its_start_to_its_end() {
    let identity = ca(&cluster()).issue(NODE, Validity::days(now(), 5)).unwrap();
    let day = Duration::from_secs(24 * 3600);
    for (at, holds) in [
        (now() - day * 2, false),
        (now() - day / 2, true),
        (now() + day * 5 - day / 2, true),
        (now() + day * 6, false),
    ] {
        match identity.check(NODE, &cluster(), at) {
            Ok(_) => assert!(holds),
            Err(error) => assert!(matches!(error, TlsError::NotValidNow { .. }) && !holds),
        }
    }
}

#[test]
fn an_authority_is_not_a_node() {
    let ca = ca(&cluster());
    let identity = NodeIdentity {
        cert_chain_pem: ca.certificate_pem.clone(),
        key_pem: ca.issuer.key().serialize_pem(),
        ca_pem: ca.certificate_pem.clone(),
    };
    assert!(matches!(identity.check(NODE, &cluster(), now()), Err(TlsError::NotANode { .. })));
}

#[test]
fn a_key_of_another_certificate_is_refused() {
    let ca = ca(&cluster());
    let identity = ca.issue(NODE, Validity::days(now(), 5)).unwrap();
    let other = ca.issue(NODE, Validity::days(now(), 5)).unwrap();
    let mixed = NodeIdentity { key_pem: other.key_pem, ..identity };
    let credentials = mixed.check(NODE, &cluster(), now()).unwrap();
    assert!(matches!(credentials.server_config(), Err(TlsError::KeyMismatch(_))));
}

#[test]
fn what_is_not_pem_is_an_error() {
    let good = ca(&cluster()).issue(NODE, Validity::days(now(), 5)).unwrap();
    let text = || "-----BEGIN CERTIFICATE-----\nno\n".to_owned();
    for (identity, what) in [
        (NodeIdentity { cert_chain_pem: text(), ..good.clone() }, "node certificate"),
        (NodeIdentity { key_pem: String::new(), ..good.clone() }, "node key"),
        (NodeIdentity { ca_pem: text(), ..good.clone() }, "authority certificate"),
    ] {
        match identity.check(NODE, &cluster(), now()).err() {
            Some(TlsError::Pem { what: found, .. }) => assert_eq!(found, what),
            result => panic!("{what}: {result:?}"),
        }
    }
    let empty = NodeIdentity { cert_chain_pem: String::new(), ..good };
    assert!(matches!(empty.check(NODE, &cluster(), now()), Err(TlsError::NotANode { .. })));
}

#[test]
fn cluster_ids_must_fit_a_dns_label() {
    let create =
        |text: &str| ClusterCa::create(&ClusterId::from_text(text), Validity::days(now(), 1));
    assert!(create(&"x".repeat(31)).is_ok());
    for text in [String::new(), "x".repeat(32)] {
        assert!(matches!(create(&text), Err(TlsError::ClusterId { .. })), "{text:?}");
    }
}

#[test]
fn a_saved_authority_issues_what_the_original_certificate_verifies() {
    let folder = Folder::new("authority");
    let original = ca(&cluster());
    original.save(&folder.0).unwrap();
    let loaded = ClusterCa::load(&folder.0, &cluster()).unwrap();
    let identity = loaded.issue(NODE, Validity::days(now(), 5)).unwrap();
    assert_eq!(identity.ca_pem, original.certificate_pem);
    identity.check(NODE, &cluster(), now()).unwrap();
    let other = ClusterCa::load(&folder.0, &ClusterId::from_text("other"));
    assert!(matches!(other, Err(TlsError::WrongCluster { .. })));
}

#[test]
fn a_saved_identity_keeps_its_key_to_its_owner() {
    let folder = Folder::new("identity");
    let identity = ca(&cluster()).issue(NODE, Validity::days(now(), 5)).unwrap();
    identity.save(&folder.0).unwrap();
    identity.save(&folder.0).unwrap();
    let loaded = NodeIdentity::load(&folder.0).unwrap();
    assert_eq!(loaded.key_pem, identity.key_pem);
    loaded.check(NODE, &cluster(), now()).unwrap();

    let key = folder.0.join(NODE_KEY_FILE);
    assert_eq!(fs::metadata(&key).unwrap().permissions().mode() & 0o777, 0o600);
    fs::set_permissions(&key, fs::Permissions::from_mode(0o640)).unwrap();
    assert!(matches!(NodeIdentity::load(&folder.0), Err(TlsError::KeyExposed { mode: 0o640, .. })));
    fs::remove_file(&key).unwrap();
    assert!(matches!(NodeIdentity::load(&folder.0), Err(TlsError::File { .. })));
}
