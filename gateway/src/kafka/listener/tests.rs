use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use meridian_access::CertificateError;
use meridian_base::id::ClusterId;
use meridian_client::security::Security;
use meridian_client::{Connection, clock};
use meridian_protocol::messages::MetadataRequest;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose,
};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

use super::*;
use crate::kafka::Server;
use crate::kafka::testing::{FakeBroker, PATIENCE, front_of, quick_config};
use crate::runtime::tls::{
    ClientFiles, ClusterCa, ListenerFiles, REVOKED_FILE, Serial, ShownCertificate, Validity,
};

const DAY: Duration = Duration::from_secs(24 * 3600);

/// A folder that goes away with the test.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let name = format!("meridian-listener-{name}-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a folder");
        Self(path)
    }

    fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, text).expect("written");
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _best_effort = std::fs::remove_dir_all(&self.0);
    }
}

/// A certificate chain and its key.
#[derive(Clone)]
struct Shown {
    chain: String,
    key: String,
}

impl Shown {
    fn new(chain: &str, key: &str) -> Self {
        Self { chain: chain.to_owned(), key: key.to_owned() }
    }
}

/// An authority of clients that is not the cluster's.
struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

fn named(name: &str) -> CertificateParams {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, name);
    (params.not_before, params.not_after) =
        ((clock::wall_time() - DAY).into(), (clock::wall_time() + DAY).into());
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    params
}

fn authority_params(name: &str) -> CertificateParams {
    let mut params = named(name);
    params.extended_key_usages.clear();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params
}

impl Authority {
    fn new(name: &str) -> Self {
        let (params, key) = (authority_params(name), KeyPair::generate().expect("a key"));
        let pem = params.self_signed(&key).expect("a certificate").pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    /// One below this one.
    fn below(&self, name: &str) -> Self {
        let (params, key) = (authority_params(name), KeyPair::generate().expect("a key"));
        let pem = params.signed_by(&key, &self.issuer).expect("a certificate").pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    fn issue(&self, params: &CertificateParams) -> Shown {
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        Shown::new(&certificate.pem(), &key.serialize_pem())
    }
}

fn cluster_authority() -> (ClusterCa, Validity) {
    let validity = Validity::days(clock::wall_time(), 10);
    (ClusterCa::create(&ClusterId::from_entropy(7), validity).expect("an authority"), validity)
}

fn listener(certificate: &Arc<ListenerCertificate>, has_login: bool) -> Listener {
    Listener { has_login, certificate: Some(Arc::clone(certificate)), ..Listener::open() }
}

/// A node with a listener that asks clients for certificates.
struct Served {
    certificate: Arc<ListenerCertificate>,
    address: String,
    ca: String,
    _stop: watch::Sender<bool>,
}

impl Served {
    async fn start(folder: &Folder, cluster: &ClusterCa, clients: ClientFiles) -> Self {
        let validity = Validity::days(clock::wall_time(), 10);
        let issued = cluster.issue_server(&["localhost".to_owned()], validity).expect("issued");
        issued.save(&folder.0).expect("saved");
        let (certificate, key) = (folder.0.join("server.pem"), folder.0.join("server-key.pem"));
        let files = ListenerFiles { certificate, key, clients: Some(clients) };
        let certificate = Arc::new(ListenerCertificate::load(&files).expect("a certificate"));
        let front = front_of(&FakeBroker::single(), quick_config());
        let any = ([127, 0, 0, 1], 0).into();
        let mut server = Server::bind(Arc::clone(&front), any).await.expect("an address");
        let address = server.listen(listener(&certificate, false), any).await.expect("an address");
        let (stop, stopped) = watch::channel(false);
        tokio::spawn(server.run(stopped));
        let address = format!("localhost:{}", address.port());
        Self { certificate, address, ca: issued.ca_pem, _stop: stop }
    }

    fn security(&self, shown: Option<&Shown>) -> Security {
        let mut options = vec![("security.protocol", "SSL"), ("ssl.ca.pem", &*self.ca)];
        if let Some(Shown { chain, key }) = shown {
            options.extend([("ssl.certificate.pem", &**chain), ("ssl.key.pem", &**key)]);
        }
        let own = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        Security::parse(&options.into_iter().map(own).collect::<BTreeMap<_, _>>()).expect("options")
    }

    async fn open(&self, shown: Option<&Shown>) -> Option<Connection> {
        Connection::open_secured(&self.address, &self.security(shown)).await.ok()
    }

    async fn lets_in(&self, shown: Option<&Shown>) -> bool {
        match self.open(shown).await {
            Some(connection) => is_served(&connection).await,
            None => false,
        }
    }
}

async fn is_served(connection: &Connection) -> bool {
    connection.call(&MetadataRequest::default(), PATIENCE).await.is_ok()
}

#[tokio::test]
async fn only_good_certificates_get_in() {
    let folder = Folder::new("zoo");
    let (cluster, validity) = cluster_authority();
    let (company, foreign) = (Authority::new("Company"), Authority::new("Foreign"));
    cluster.save(&folder.0).expect("saved");
    let cluster_pem = std::fs::read_to_string(folder.0.join("ca.pem")).expect("saved");
    let authorities = folder.write("clients.pem", &format!("{cluster_pem}{}", company.pem));
    let revoked = cluster.issue_client("gone", validity).expect("a certificate");
    let file = folder.write("gone.pem", &revoked.cert_chain_pem);
    let serial = Serial::of_file(&file).expect("a serial number");
    cluster.revoke(&folder.0, &[serial], clock::wall_time()).expect("a list");
    let clients =
        ClientFiles { authorities, revoked: Some(folder.0.join(REVOKED_FILE)), is_required: true };
    let served = Served::start(&folder, &cluster, clients).await;

    let team = company.below("Team");
    let of_team = team.issue(&named("al"));
    let with_chain = Shown { chain: format!("{}{}", of_team.chain, team.pem), ..of_team.clone() };
    let own = cluster.issue_client("al", validity).expect("a certificate");
    let mut any_usage = named("al");
    any_usage.extended_key_usages.clear();
    let good = [
        ("of the company", company.issue(&named("al"))),
        ("of a team", with_chain),
        ("of the cluster's authority", Shown::new(&own.cert_chain_pem, &own.key_pem)),
        ("for any use", company.issue(&any_usage)),
    ];
    for (what, shown) in &good {
        assert!(served.lets_in(Some(shown)).await, "{what}");
    }

    let at = |from: SystemTime, to: SystemTime| {
        let mut params = named("al");
        (params.not_before, params.not_after) = (from.into(), to.into());
        params
    };
    let now = clock::wall_time();
    let (mut of_servers, mut nobody) = (named("al"), named("al"));
    of_servers.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    nobody.distinguished_name = DistinguishedName::new();
    let node = cluster.issue(NodeId::new(1), validity).expect("a certificate");
    let link = cluster.issue_link("east", validity).expect("a certificate");
    let server = cluster.issue_server(&["localhost".to_owned()], validity).expect("a certificate");
    let key = KeyPair::generate().expect("a key");
    let by_itself = named("al").self_signed(&key).expect("a certificate").pem();
    let bad = [
        ("ended", company.issue(&at(now - DAY * 2, now - DAY))),
        ("not begun", company.issue(&at(now + DAY, now + DAY * 2))),
        ("of a foreign authority", foreign.issue(&named("al"))),
        ("of a foreign authority with our name", Authority::new("Company").issue(&named("al"))),
        ("signed by itself", Shown::new(&by_itself, &key.serialize_pem())),
        ("without the authority between", of_team),
        ("for servers alone", company.issue(&of_servers)),
        ("of a listener", Shown::new(&server.cert_chain_pem, &server.key_pem)),
        ("revoked", Shown::new(&revoked.cert_chain_pem, &revoked.key_pem)),
        ("an authority", company.issue(&authority_params("al"))),
        ("the authority", Shown::new(&company.pem, &company.issuer.key().serialize_pem())),
        ("of a node", Shown::new(&node.cert_chain_pem, &node.key_pem)),
        ("of a link", Shown::new(&link.cert_chain_pem, &link.key_pem)),
        ("of nobody", company.issue(&nobody)),
    ];
    for (what, shown) in &bad {
        assert!(!served.lets_in(Some(shown)).await, "{what}");
    }
    assert!(!served.lets_in(None).await, "without a certificate");
}

#[tokio::test]
async fn who_is_revoked_is_cut_and_the_others_go_on() {
    let folder = Folder::new("revoke");
    let (cluster, validity) = cluster_authority();
    cluster.save(&folder.0).expect("saved");
    let shown = |name: &str| {
        let issued = cluster.issue_client(name, validity).expect("a certificate");
        Shown::new(&issued.cert_chain_pem, &issued.key_pem)
    };
    let serial = |shown: &Shown| {
        Serial::of_file(&folder.write("one.pem", &shown.chain)).expect("a serial number")
    };
    let (al, bo, cy) = (shown("al"), shown("bo"), shown("cy"));
    cluster.revoke(&folder.0, &[serial(&cy)], clock::wall_time()).expect("a list");
    let revoked = folder.0.join(REVOKED_FILE);
    let clients = ClientFiles {
        authorities: folder.0.join("ca.pem"),
        revoked: Some(revoked.clone()),
        is_required: false,
    };
    let served = Served::start(&folder, &cluster, clients).await;
    let connections = [served.open(Some(&al)).await, served.open(Some(&bo)).await];
    let [Some(of_al), Some(of_bo)] = connections else { panic!("both are let in") };
    assert!(is_served(&of_al).await && is_served(&of_bo).await);
    assert!(served.lets_in(None).await, "certificates are requested, not required");
    assert!(!served.lets_in(Some(&cy)).await);

    let whole = std::fs::read_to_string(&revoked).expect("a list");
    for (what, text) in [("half a list", &whole[..whole.len() / 2]), ("no list", "")] {
        folder.write(REVOKED_FILE, text);
        assert!(served.certificate.reload().is_err(), "{what}");
        assert!(!served.lets_in(Some(&cy)).await, "{what}: what there was stays");
    }
    let (other, _) = cluster_authority();
    std::fs::remove_file(&revoked).expect("removed");
    other.revoke(&folder.0, &[], clock::wall_time()).expect("a list");
    let forged = served.certificate.reload();
    assert!(forged.is_err(), "another authority of the name has signed it: {forged:?}");

    folder.write(REVOKED_FILE, &whole);
    let count = cluster.revoke(&folder.0, &[serial(&al)], clock::wall_time());
    assert_eq!(count.expect("a list"), 2);
    assert!(served.certificate.reload().expect("a list"));
    assert!(!is_served(&of_al).await, "cut at its next request");
    assert!(!served.lets_in(Some(&al)).await && !served.lets_in(Some(&cy)).await);
    assert!(is_served(&of_bo).await && served.lets_in(Some(&bo)).await);
}

/// Who a client is at a listener.
async fn arrive(
    listener: &Listener,
    security: Security,
) -> Result<Option<Principal>, CertificateError> {
    let socket = TcpListener::bind("127.0.0.1:0").await.expect("an address");
    let address = format!("localhost:{}", socket.local_addr().expect("an address").port());
    let dialling =
        tokio::spawn(async move { Connection::open_secured(&address, &security).await.map(drop) });
    let (stream, _): (TcpStream, _) = socket.accept().await.expect("a client");
    let certificate = listener.certificate.as_ref().expect("a listener with TLS");
    let (stream, shown) = certificate.accept(stream).await.expect("a handshake");
    let shown: Arc<ShownCertificate> = shown.expect("a certificate");
    assert!(shown.holds());
    let user = listener.user_of(&shown);
    drop(stream);
    let _it_was_not_served = dialling.await.expect("no panic");
    user
}

#[tokio::test]
async fn a_client_is_who_its_certificate_names() {
    let folder = Folder::new("who");
    let (cluster, validity) = cluster_authority();
    let company = Authority::new("Company");
    cluster.save(&folder.0).expect("saved");
    let ca = std::fs::read_to_string(folder.0.join("ca.pem")).expect("saved");
    let authorities = folder.write("clients.pem", &format!("{ca}{}", company.pem));
    let clients = ClientFiles { authorities, revoked: None, is_required: true };
    let served = Served::start(&folder, &cluster, clients).await;
    let mut params = named("al, the first");
    params.distinguished_name.push(DnType::OrganizationName, "Ex");
    let al = served.security(Some(&company.issue(&params)));
    let node = cluster.issue(NodeId::new(1), validity).expect("a certificate");
    let node = served.security(Some(&Shown::new(&node.cert_chain_pem, &node.key_pem)));

    let open = listener(&served.certificate, false);
    let user = arrive(&open, al.clone()).await.expect("a user");
    assert_eq!(user, Some(Principal::user("O=Ex,CN=al\\, the first")));
    let by_name = Listener { user_name: UserName::Cn, ..open.clone() };
    assert_eq!(arrive(&by_name, al.clone()).await, Ok(Some(Principal::user("al, the first"))));
    let rules = ["RULE:^.*CN=(.*)\\\\,.*$/$1/U".to_owned()];
    let name_rules = NameRules::parse(&rules).expect("a rule");
    let by_rule = Listener { name_rules, ..open.clone() };
    assert_eq!(arrive(&by_rule, al.clone()).await, Ok(Some(Principal::user("AL"))));
    let by_id = Listener { user_name: UserName::Spiffe, ..open.clone() };
    let refused = arrive(&by_id, al.clone()).await;
    assert!(matches!(refused, Err(CertificateError::Ambiguous { count: 0, .. })));
    let login = listener(&served.certificate, true);
    assert_eq!(arrive(&login, al).await, Ok(None), "it is who logs in");
    for listener in [&open, &by_name, &by_id, &login] {
        let refused = arrive(listener, node.clone()).await;
        assert!(matches!(refused, Err(CertificateError::OfTheCluster { .. })));
    }
}
