//! Suites of others: those of their tests that are about logins, users and access rules.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::super::install::Kind;
use super::super::suites::cases::Case;
use super::super::suites::{self, fetch};
use super::super::{Program, suites::go, suites::librdkafka as c, suites::python};
use super::Bench;
use super::node::{ADMIN, Way};
use crate::command::ok;

const AT_MOST: Duration = Duration::from_secs(300);
/// Its default is 25 times as many.
const FRANZ_GO_RECORD_COUNT: &str = "20000";
/// Who kafka-go's tests log in as, with the mechanism that each has its password for.
const KAFKA_GO_USERS: [(&str, &str, &[&str]); 3] = [
    ("adminplain", "admin-secret", &[]),
    ("adminscram256", "admin-secret-256", &["--mechanism", "SCRAM-SHA-256"]),
    ("adminscram512", "admin-secret-512", &["--mechanism", "SCRAM-SHA-512"]),
];
const KAFKA_GO_TESTS: &str = "^(TestSASL|TestUnsupportedSASLMechanism|TestAlterUserScramCredentials\
    |TestDescribeUserScramCredentials|TestClient(Create|Describe|Delete)ACLs\
    |TestWriter$/^writing_a_message_with_SASL_Plain_authentication)$";
/// Those of librdkafka that make rules by Kafka's tool, which they can't give a login.
const LIBRDKAFKA_OPEN: [&str; 3] = ["0109", "0115", "0119"];
/// Within the test of its administrator, what is about users and rules.
const LIBRDKAFKA_ADMIN: [&str; 2] = ["Acls", "UserScramCredentials"];
/// And about who sees what: a user who may do everything as long as no rule is about it.
const LIBRDKAFKA_SIGHT: [&str; 3] = ["DescribeCluster", "DescribeTopics", "authorized_ops"];
const LIBRDKAFKA_USER: (&str, &str) = ("nobody-in-particular", "a-secret");
const OPEN_RESOURCES: &str = "allow.everyone.if.no.acl.found";
/// Its fixtures, for the node that runs.
const KAFKA_PYTHON_NODE: &str = include_str!("kafka_python_node.py");

/// What a command prints, at its end or when its time is over.
fn told(bench: &Bench<'_>, name: &str, command: &mut Command) -> Result<String, String> {
    let log = bench.folder.join(format!("{name}.txt"));
    let ended = Program::spawn(name, command, log.clone())?.wait(AT_MOST);
    println!("   {name}: {ended}");
    let printed = std::fs::read(&log).map_err(|error| format!("{}: {error}", log.display()))?;
    Ok(String::from_utf8_lossy(&printed).into_owned())
}

fn go(source: &Path, package: &str, tests: &str) -> Command {
    let mut go = Command::new("go");
    go.current_dir(source).args(["test", "-mod=mod", "-p", "1", "-count", "1", "-json"]);
    go.args(["-run", tests, package]);
    go
}

/// Logins by both of SCRAM's hashes, and groups and transactions over TLS.
pub(super) fn franz_go(bench: &Bench<'_>) -> Result<Vec<Case>, String> {
    let source = suites::source(bench.lab, "franz-go")?;
    let mut cases = Vec::new();
    for bits in ["256", "512"] {
        let mut go = go(&source, "./pkg/kgo", "^TestSCRAMAuth");
        go.env("KGO_SEEDS", bench.node.address(Way::Open))
            .env("KGO_TEST_SCRAM_SEEDS", bench.node.address(Way::SaslPlaintext))
            .env("KGO_TEST_SCRAM", format!("{}:{}:{bits}", ADMIN.0, ADMIN.1));
        let printed = told(bench, &format!("franz-go-{bits}"), &mut go)?;
        let read = go::read(&printed, "github.com/twmb/franz-go").into_iter();
        cases.extend(read.map(|case| Case::new(format!("{} {bits}", case.name), case.verdict)));
    }
    let mut go = go(&source, "./pkg/kgo", "^(TestGroupETL|TestTxnEtl)$");
    go.env("KGO_SEEDS", bench.node.address(Way::Ssl))
        .env("KGO_TEST_TLS", format!("ca:{}", bench.node.authority().display()))
        .env("KGO_TEST_RF", "1")
        .env("KGO_TEST_RECORDS", FRANZ_GO_RECORD_COUNT)
        .env("KGO_LOG_LEVEL", "none");
    let printed = told(bench, "franz-go-tls", &mut go)?;
    let read = go::read(&printed, "github.com/twmb/franz-go").into_iter();
    cases.extend(read.map(|case| Case::new(format!("{} TLS", case.name), case.verdict)));
    Ok(cases)
}

pub(super) fn kafka_go(bench: &Bench<'_>) -> Result<Vec<Case>, String> {
    for (user, password, how) in KAFKA_GO_USERS {
        let create = ["user", "create", user, "--password-stdin"];
        bench.node.ask(&[&create[..], how].concat(), password)?;
    }
    bench.node.ask(&["topic", "create", "test-writer-0"], "")?;
    let mut go = go(&suites::source(bench.lab, "kafka-go")?, "./...", KAFKA_GO_TESTS);
    go.env("KAFKA_SKIP_NETTEST", "1").env("KAFKA_VERSION", "4.0.0");
    let printed = told(bench, "kafka-go", &mut go)?;
    Ok(go::read(&printed, "github.com/segmentio/kafka-go"))
}

pub(super) fn kafka_python(bench: &Bench<'_>) -> Result<Vec<Case>, String> {
    bench.node.user("alice", "alice-secret")?;
    let source = suites::source(bench.lab, "kafka-python")?;
    let plugin = bench.folder.join("kafka_python_node.py");
    std::fs::write(&plugin, KAFKA_PYTHON_NODE)
        .map_err(|error| format!("{}: {error}", plugin.display()))?;
    let version = python::KAFKA_PYTHON.sources();
    let port = |way| bench.node.address(way).rsplit(':').next().unwrap_or_default().to_owned();
    let mut pytest = Command::new(source.join("venv/bin/python"));
    pytest
        .args(["-m", "pytest", "-v", "--color=no", "-p", "no:cacheprovider"])
        .args(["-p", "kafka_python_node", "--timeout=60", "--timeout-method=signal"])
        .args(["test/integration/test_sasl_integration.py"])
        .args(["test/integration/test_ssl_integration.py"])
        .arg("test/integration/test_admin_integration.py::test_create_describe_delete_acls")
        .current_dir(source.join(version))
        .env("PYTHONPATH", &bench.folder)
        .env("KAFKA_VERSION", "4.2.0")
        .env("KAFKA_ROOT", &bench.folder)
        .env("PORT_PLAINTEXT", port(Way::Open))
        .env("PORT_SASL_PLAINTEXT", port(Way::SaslPlaintext))
        .env("PORT_SSL", port(Way::Ssl))
        .env("AUTHORITY", bench.node.authority());
    Ok(python::read(&told(bench, "kafka-python", &mut pytest)?))
}

/// Its tests of rules deny what everybody may do: rules are enforced, and say so. The test that makes
/// and counts rules comes before.
pub(super) fn librdkafka(bench: &Bench<'_>) -> Result<Vec<Case>, String> {
    let tests = suites::source(bench.lab, "librdkafka")?.join("tests");
    bench.lab.install(Kind::Apps)?;
    let tools = bench.folder.join("kafka");
    bring_tool(bench, &tools, "kafka-acls", "org.apache.kafka.tools.AclCommand")?;
    bring_tool(bench, &tools, "kafka-configs", "kafka.admin.ConfigCommand")?;
    bench.node.user(LIBRDKAFKA_USER.0, LIBRDKAFKA_USER.1)?;
    let login = |way, mechanism, user| {
        let options = bench.node.options(way, mechanism, user);
        format!("bootstrap.servers={}\n{options}", bench.node.address(way))
    };
    let mut cases = Vec::new();
    let mut run = |number: &str, name: &str, part: &str, options: &str| -> Result<(), String> {
        let conf = bench.folder.join(format!("{name}.conf"));
        // Kafka's tool takes seconds to start.
        std::fs::write(&conf, format!("{options}test.timeout.multiplier=3\n"))
            .map_err(|error| format!("{}: {error}", conf.display()))?;
        let mut runner = Command::new("./test-runner");
        runner
            .args(["-L", "-Q", "-p1"])
            .current_dir(&tests)
            .env("TESTS", number)
            .env("SUBTESTS", part)
            .env("RDKAFKA_TEST_CONF", &conf)
            .env("TEST_KAFKA_VERSION", c::KAFKA_VERSION)
            .env("KAFKA_PATH", &tools)
            .env("LD_LIBRARY_PATH", "../src:../src-cpp");
        let read = c::read(&told(bench, name, &mut runner)?).into_iter();
        cases.extend(read.map(|case| Case::new(case.name.replace(number, name), case.verdict)));
        Ok(())
    };
    let scram = login(Way::SaslSsl, "SCRAM-SHA-512", ADMIN);
    for part in LIBRDKAFKA_ADMIN {
        run("0081", &format!("0081-{part}"), part, &scram)?;
    }
    run("0135", "0135-SCRAM-SHA-512", "", &scram)?;
    run("0135", "0135-PLAIN", "", &login(Way::SaslPlaintext, "PLAIN", ADMIN))?;
    open_resources(bench, &tools)?;
    bench.node.ask(&["acl", "mode", "enforce", "--yes"], "")?;
    let user = login(Way::SaslSsl, "SCRAM-SHA-512", LIBRDKAFKA_USER);
    for part in LIBRDKAFKA_SIGHT {
        run("0081", &format!("0081-{part}"), part, &user)?;
    }
    for what in [["--topic", "*"], ["--group", "*"], ["--transactional-id", "*"]] {
        bench.node.ask(&[&["acl", "allow", "User:*", "all"], &what[..]].concat(), "")?;
    }
    bench.node.ask(&["acl", "allow", "User:*", "all", "--cluster"], "")?;
    let open = format!("bootstrap.servers={}\n", bench.node.address(Way::Open));
    for number in LIBRDKAFKA_OPEN {
        run(number, number, "", &open)?;
    }
    Ok(cases)
}

/// Brings a tool of Kafka, which its tests call, under its own name.
fn bring_tool(bench: &Bench<'_>, folder: &Path, name: &str, class: &str) -> Result<(), String> {
    fetch::make(&folder.join("bin"))?;
    let jars = bench.lab.folder.join("apps/jars/*");
    let java = format!(
        "#!/bin/sh\nexec java -Xmx256m -XX:TieredStopAtLevel=1 -cp '{}' {class} \"$@\"\n",
        jars.display()
    );
    fetch::script(&folder.join(format!("bin/{name}.sh")), &java)
}

/// Opens what no rule is about to everybody, as the brokers of its tests do.
fn open_resources(bench: &Bench<'_>, tools: &Path) -> Result<(), String> {
    let config = format!("{OPEN_RESOURCES}=true");
    let mut command = Command::new(tools.join("bin/kafka-configs.sh"));
    command.args(["--bootstrap-server", &bench.node.address(Way::Open), "--alter"]).args([
        "--entity-type",
        "brokers",
        "--entity-default",
        "--add-config",
        &config,
    ]);
    ok(&mut command)
}
