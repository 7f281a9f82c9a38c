//! What sarama's tests put between themselves and their brokers, which they break, and how they
//! end brokers: toxiproxy, and what they take for docker.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::super::Program;
use super::{Plan, Site, fetch};
use crate::command::ok;

/// Where the tests command the proxies.
pub(super) const CONTROL_PORT: u16 = 8474;
/// Where they look for the first broker, and for the others at the next ports.
pub(super) const FIRST_PORT: u16 = 29091;
/// How many brokers they know of.
const PROXY_COUNT: u16 = 5;
const PROXIES: &str = "github.com/Shopify/toxiproxy/v2/cmd/server@v2.5.0";
const READY_WITHIN: Duration = Duration::from_secs(20);

/// Builds the proxies beside a suite's sources.
pub(super) fn fetch(folder: &Path) -> Result<(), String> {
    // A folder of tools is not part of a module's packages if its name begins so.
    let tools = folder.join("_tools");
    fetch::make(&tools)?;
    ok(Command::new("go").args(["install", PROXIES]).env("GOBIN", tools))
}

/// Starts a proxy for each broker that the tests know of. Where there are fewer nodes, several
/// lead to one.
pub(super) fn start(site: &Site) -> Result<Program, String> {
    let config = site.folder.join("proxies.json");
    let proxies = (0..PROXY_COUNT).map(|index| proxy(index, &site.plan));
    let text = format!("[{}]", proxies.collect::<Vec<_>>().join(","));
    std::fs::write(&config, text).map_err(|error| format!("{}: {error}", config.display()))?;
    let mut command = Command::new(site.source.join("_tools/server"));
    command.args(["-host", "127.0.0.1", "-port", &CONTROL_PORT.to_string(), "-config"]);
    let log = site.folder.join("proxies.txt");
    let mut proxies = Program::spawn("toxiproxy", command.arg(&config), log.clone())?;
    let deadline = Instant::now() + READY_WITHIN;
    while std::net::TcpStream::connect(("127.0.0.1", CONTROL_PORT)).is_err() {
        if proxies.has_ended() || Instant::now() > deadline {
            return Err(format!("the proxies do not serve; see {}", log.display()));
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(proxies)
}

fn proxy(index: u16, plan: &Plan) -> String {
    format!(
        "{{\"name\":\"kafka{}\",\"listen\":\"127.0.0.1:{}\",\"upstream\":\"127.0.0.1:{}\",\
         \"enabled\":true}}",
        index + 1,
        FIRST_PORT + index,
        plan.base_port + index % plan.nodes.count(),
    )
}

/// A `PATH` on which `docker compose stop|start|logs kafka-N` does that to node N.
pub(super) fn path_with_docker(site: &Site) -> Result<String, String> {
    let folder = site.folder.join("bin");
    fetch::make(&folder)?;
    let script = script(&site.program, &site.folder.join("cluster"));
    fetch::script(&folder.join("docker"), &script)?;
    let path = std::env::var("PATH").unwrap_or_default();
    Ok(format!("{}:{path}", folder.display()))
}

/// Ends as docker does: it asks, and kills after ten seconds.
fn script(program: &Path, data: &Path) -> String {
    let program = program.display();
    let data = data.display();
    format!(
        r#"#!/bin/sh
for last; do :; done
node=${{last#kafka-}}
case "$1 $2" in
"compose stop")
    pid=$(awk -v id="\"id\": $node," \
        'index($0, id) {{ is = 1 }} is && /"pid":/ {{ gsub(/[^0-9]/, ""); print; exit }}' '{data}/dev.json')
    kill -TERM "$pid" || exit 1
    tries=100
    while kill -0 "$pid" 2>/dev/null; do
        tries=$((tries - 1))
        [ $tries -gt 0 ] || exec '{program}' dev kill --node "$node" --data '{data}'
        sleep 0.1
    done ;;
"compose start") exec '{program}' dev restart --node "$node" --data '{data}' ;;
"compose logs") exec cat '{data}'/node-"$node"/node.log ;;
*) echo "$*: not here" >&2; exit 1 ;;
esac
"#
    )
}

#[cfg(test)]
mod tests {
    use super::super::Nodes;
    use super::*;

    #[test]
    fn a_proxy_is_before_a_node() {
        let plan = Plan::new(Nodes::Three, 9300);
        assert_eq!(
            proxy(1, &plan),
            "{\"name\":\"kafka2\",\"listen\":\"127.0.0.1:29092\",\
             \"upstream\":\"127.0.0.1:9301\",\"enabled\":true}"
        );
        assert!(proxy(4, &plan).contains("\"upstream\":\"127.0.0.1:9301\""));
    }

    #[test]
    fn docker_ends_and_starts_nodes() {
        let folder = std::env::temp_dir().join(format!("meridian-docker-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let script = script(Path::new("/bin/echo"), &folder);
        let say = |arguments: &[&str]| {
            let mut shell = Command::new("sh");
            let output = shell.args(["-c", &script, "docker"]).args(arguments).output().unwrap();
            (output.status.success(), String::from_utf8(output.stdout).unwrap())
        };
        let mut node = Command::new("sleep").arg("600").spawn().unwrap();
        let nodes = format!(
            "{{\n\"id\": 1,\n\"pid\": null\n\"id\": 12,\n\"dc\": \"A\",\n\"pid\": {}\n}}\n",
            node.id()
        );
        std::fs::write(folder.join("dev.json"), nodes).unwrap();
        let waiting = std::thread::spawn(move || node.wait().unwrap());
        assert_eq!(say(&["compose", "stop", "kafka-12"]), (true, String::new()));
        assert_eq!(waiting.join().unwrap().code(), None, "it was ended by a signal");
        assert!(!say(&["compose", "stop", "kafka-1"]).0, "it is down");
        let restart = format!("dev restart --node 12 --data {}\n", folder.display());
        assert_eq!(say(&["compose", "start", "kafka-12"]), (true, restart));
        std::fs::create_dir(folder.join("node-3")).unwrap();
        std::fs::write(folder.join("node-3/node.log"), "line").unwrap();
        let logs = say(&["compose", "logs", "--since", "now", "kafka-3"]);
        assert_eq!(logs, (true, "line".to_owned()));
        assert!(!say(&["compose", "down"]).0);
        std::fs::remove_dir_all(folder).unwrap();
    }
}
