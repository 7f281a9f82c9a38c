//! The work that systems are measured at.

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use super::meter::{Meter, Taken};
use super::rows::{Figure, Row};
use super::systems::System;
use crate::text::number_after;

/// The most chains that are tried at once.
const CHAINS_MAX: u32 = 16;
/// Of the metric of seed services: 99.9 % of the records of each chain.
const CHAIN_BAR_MS: &str = "100";
/// A topic is left alone for so long before it is written to.
const CREATED_FOR: Duration = Duration::from_secs(2);
const GIGA: f64 = 1e9;
const MEGA: f64 = 1e6;

/// A kind of work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Work {
    /// 1 KiB records in batches of 128 KiB, as fast as they go.
    Batches128K,
    /// 1 KiB records in batches of 1 MB.
    Batches1M,
    /// 100 B records in large batches.
    Small,
    /// 1000 records of 100 B a second, in one partition.
    Rate1K,
    /// 10 000 a second, in twelve.
    Rate10K,
    /// A topic from its beginning to its end.
    Read,
    /// Chains of five services, without and with a linger of 5 ms.
    Chain0,
    Chain5,
}

impl Work {
    pub(super) const ALL: [Self; 8] = [
        Self::Batches128K,
        Self::Batches1M,
        Self::Small,
        Self::Rate1K,
        Self::Rate10K,
        Self::Read,
        Self::Chain0,
        Self::Chain5,
    ];

    fn name(self) -> &'static str {
        match self {
            Self::Batches128K => "batches-128k",
            Self::Batches1M => "batches-1m",
            Self::Small => "records-100b",
            Self::Rate1K => "rate-1k",
            Self::Rate10K => "rate-10k",
            Self::Read => "read",
            Self::Chain0 => "chain-0",
            Self::Chain5 => "chain-5",
        }
    }

    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|work| work.name() == name)
    }

    /// Does it once.
    pub(super) fn run(
        self,
        meridian: &Path,
        system: &System,
        turn: u32,
        seconds: u32,
    ) -> Result<Row, String> {
        let client = Client { meridian, system };
        let topic = format!("{}-{turn}", self.name());
        let duration = seconds.to_string();
        let produce = |options: &[&str]| {
            client.create(&topic, if self == Self::Rate1K { "1" } else { "12" })?;
            let all = ["produce", "--topic", &topic, "--duration", &duration];
            client.measure(&[&all[..], options].concat())
        };
        let (figures, other_cores) = match self {
            Self::Batches128K => throughput(&produce(&["--size", "1024"])?)?,
            Self::Batches1M => {
                throughput(&produce(&["--size", "1024", "--batch-bytes", "1000000"])?)?
            }
            Self::Small => throughput(&produce(&["--size", "100", "--batch-bytes", "1000000"])?)?,
            Self::Rate1K => latency(&produce(&["--size", "100", "--rate", "1000"])?)?,
            Self::Rate10K => latency(&produce(&["--size", "100", "--rate", "10000"])?)?,
            Self::Read => {
                produce(&["--size", "1024"])?;
                throughput(&client.measure(&["consume", "--topic", &topic])?)?
            }
            Self::Chain0 => client.chains("0", &topic, &duration)?,
            Self::Chain5 => client.chains("5", &topic, &duration)?,
        };
        client.delete_topics(&topic)?;
        let system = system.kind.name().to_owned();
        Ok(Row { work: self.name().to_owned(), system, turn, figures, other_cores })
    }
}

/// Has a system write so much that its compiler knows all that it does often.
pub(super) fn warm(meridian: &Path, system: &System, megabytes: u64) -> Result<(), String> {
    let client = Client { meridian, system };
    let records = (megabytes * 1_000_000 / 1024).to_string();
    client.bench(&["produce", "--topic", "warm", "--size", "1024", "--records", &records])?;
    client.bench(&["consume", "--topic", "warm"])?;
    client.delete_topics("warm")
}

/// What a run printed, and what it took.
struct Measured {
    printed: String,
    taken: Taken,
}

impl Measured {
    fn number(&self, name: &str) -> Result<f64, String> {
        number_after(&self.printed, &format!("\"{name}\":"))
            .ok_or_else(|| format!("the run did not print {name}: {}", self.printed))
    }
}

/// `meridian bench`, against one system.
struct Client<'a> {
    meridian: &'a Path,
    system: &'a System,
}

impl Client<'_> {
    fn measure(&self, arguments: &[&str]) -> Result<Measured, String> {
        let meter = Meter::start(&self.system.servers());
        let printed = self.bench(arguments)?;
        Ok(Measured { printed, taken: meter.end() })
    }

    fn bench(&self, arguments: &[&str]) -> Result<String, String> {
        let output = self.output(&[&["bench"], arguments].concat())?;
        // 2: it worked, and is not within its bar.
        if output.status.success() || output.status.code() == Some(2) {
            return Ok(String::from_utf8_lossy(&output.stdout).replace(' ', ""));
        }
        Err(format!(
            "{}: bench {}: {}",
            self.system.kind.name(),
            arguments.join(" "),
            String::from_utf8_lossy(&output.stderr)
        ))
    }

    fn output(&self, arguments: &[&str]) -> Result<Output, String> {
        let mut command = Command::new(self.meridian);
        command.args(arguments).args(["-o", "json", "-b", &self.system.bootstrap]);
        let output = command.stdin(Stdio::null()).output();
        output.map_err(|error| format!("{}: {error}", self.meridian.display()))
    }

    /// Creates a topic, and waits: in Kafka some brokers do not know for a moment what they lead.
    fn create(&self, topic: &str, partitions: &str) -> Result<(), String> {
        let created = self.output(&["topic", "create", topic, "--partitions", partitions])?;
        if !created.status.success() {
            return Err(String::from_utf8_lossy(&created.stderr).into_owned());
        }
        thread::sleep(CREATED_FOR);
        Ok(())
    }

    /// How many chains hold at once: one more after the other, until some record of one is late.
    fn chains(
        &self,
        linger_ms: &str,
        prefix: &str,
        duration: &str,
    ) -> Result<(Vec<Figure>, f64), String> {
        let mut held = (0, 0.0, 0.0);
        let mut other_cores = 0.0_f64;
        for instances in 1..=CHAINS_MAX {
            let run = self.measure(&[
                "chain",
                "--instances",
                &instances.to_string(),
                "--linger-ms",
                linger_ms,
                "--prefix",
                prefix,
                "--bar-ms",
                CHAIN_BAR_MS,
                "--duration",
                duration,
            ])?;
            other_cores = other_cores.max(run.taken.other_cores);
            let worst_ms = run.number("worst_p999_ms")?;
            let cores = run.taken.servers_cpu_s / run.taken.wall_s;
            if !run.printed.contains("\"holds\":true") {
                break;
            }
            held = (instances, worst_ms, cores);
        }
        let (instances, worst_ms, cores) = held;
        let figures = vec![
            Figure::new("chains", f64::from(instances)),
            Figure::new("worst_p999_ms", worst_ms),
            Figure::new("server_cores", cores),
        ];
        Ok((figures, other_cores))
    }

    /// Deletes the topics whose names begin so, that all systems have as much to keep.
    fn delete_topics(&self, prefix: &str) -> Result<(), String> {
        let listed = self.output(&["topic", "list"])?;
        let listed = String::from_utf8_lossy(&listed.stdout).replace(' ', "");
        let names = listed.split("\"name\":\"").skip(1).filter_map(|rest| rest.split('"').next());
        for name in names.filter(|name| name.starts_with(prefix)) {
            let deleted = self.output(&["topic", "delete", name, "--yes"])?;
            if !deleted.status.success() {
                return Err(String::from_utf8_lossy(&deleted.stderr).into_owned());
            }
        }
        Ok(())
    }
}

/// Of work that goes as fast as it can.
fn throughput(run: &Measured) -> Result<(Vec<Figure>, f64), String> {
    let gigabytes = run.number("payload_bytes")? / GIGA;
    let figures = vec![
        Figure::new("mb_per_s", run.number("mb_per_s")?),
        Figure::new("records_per_s", run.number("records_per_s")?),
        Figure::new("cpu_s_per_gb", run.taken.servers_cpu_s / gigabytes),
        Figure::new("switches_per_gb", run.taken.switches as f64 / gigabytes),
    ];
    Ok((figures, run.taken.other_cores))
}

/// Of work that comes at a rate.
fn latency(run: &Measured) -> Result<(Vec<Figure>, f64), String> {
    let millions = run.number("records")? / MEGA;
    let figures = vec![
        Figure::new("p50_ms", run.number("p50")?),
        Figure::new("p99_ms", run.number("p99")?),
        Figure::new("p999_ms", run.number("p999")?),
        Figure::new("cpu_s_per_million", run.taken.servers_cpu_s / millions),
        Figure::new("switches_per_record", run.taken.switches as f64 / millions / MEGA),
    ];
    Ok((figures, run.taken.other_cores))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_what_was_printed_by_what_was_taken() {
        let taken = Taken { servers_cpu_s: 4.0, switches: 500, other_cores: 0.1, wall_s: 9.0 };
        let printed = "{\"records\":1000000,\"payload_bytes\":2000000000,\"records_per_s\":5e1,\
            \"mb_per_s\":100.5,\"latency_ms\":{\"p50\":0.7,\"p99\":8.0,\"p999\":13.9}}";
        let run = Measured { printed: printed.to_owned(), taken };
        let (figures, other_cores) = throughput(&run).unwrap();
        assert_eq!(figures[0], Figure::new("mb_per_s", 100.5));
        assert_eq!(figures[2], Figure::new("cpu_s_per_gb", 2.0));
        assert_eq!(other_cores, 0.1);
        let (figures, _) = latency(&run).unwrap();
        assert_eq!(figures[2], Figure::new("p999_ms", 13.9));
        assert_eq!(figures[3], Figure::new("cpu_s_per_million", 4.0));
        let nothing = Measured { printed: "{}".to_owned(), taken };
        assert!(throughput(&nothing).is_err());
    }

    #[test]
    fn every_work_is_named_once() {
        for work in Work::ALL {
            assert_eq!(Work::named(work.name()), Some(work));
        }
        assert_eq!(Work::named("sleep"), None);
    }
}
