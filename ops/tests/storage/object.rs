//! Cold records go to an object store, while nodes are killed: a shared folder, or an S3 server if
//! `MERIDIAN_TEST_S3` says where one listens, and in which folder it keeps its buckets:
//! `MERIDIAN_TEST_S3=http://127.0.0.1:7070,/srv/buckets` (bucket `meridian`, keys from `AWS_*`).

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde_json::Value;

use crate::common::{Scratch, ok, run, text};
use crate::lines::Lines;
use crate::nodes::{Nodes, until};
use crate::{WITHIN, say, turn};

const SIZE_BYTES: usize = 48_000_000;

#[test]
fn what_is_cold_goes_to_the_object_store_and_comes_back() {
    let _turn = turn();
    let scratch = Scratch::new("bucket");
    let (options, folder) = match std::env::var("MERIDIAN_TEST_S3") {
        Ok(server) => {
            let (endpoint, buckets) = server.split_once(',').expect("endpoint,folder");
            let options =
                ["--object-store", "s3://meridian/cold", "--object-store-endpoint", endpoint];
            (options.map(str::to_owned).to_vec(), Path::new(buckets).join("meridian/cold"))
        }
        Err(_) => {
            let url = format!("file://{}", scratch.path().display());
            (vec!["--object-store".to_owned(), url], scratch.path().to_owned())
        }
    };
    let options: Vec<&str> = options.iter().map(String::as_str).collect();
    let nodes = Nodes::start_with("object", &options);
    let lines = Lines::write(&nodes, "t", 3, SIZE_BYTES);
    let began = Instant::now();
    convert(&nodes);

    // Killed while objects are put and named: what was not named is put again by the next leaders.
    until("some objects are there", WITHIN, || !objects(&folder).is_empty());
    let lost = ["--dc", "C", "--rack", "B1"];
    nodes.kill(&lost);
    lines.check(&nodes, "with nodes killed in the middle of packing");
    let packed = settled(&nodes);
    let took = began.elapsed().as_secs_f64();
    say(&format!("object: {} objects of {} bytes, after {took:.0} s", packed.0, packed.1));
    assert!(packed.1 as usize > SIZE_BYTES / 2, "{packed:?}");
    lines.check(&nodes, "with a datacenter and a rack lost");
    nodes.restart(&lost);
    nodes.wait_until_whole();

    // No memory of theirs is left: all is read from the store anew.
    let all = ["--dc", "A", "--dc", "B", "--dc", "C"];
    nodes.kill(&all);
    nodes.restart(&all);
    nodes.wait_until_whole();
    lines.check(&nodes, "after all nodes were killed");
    assert_eq!(describe(&nodes).status.code(), Some(0));

    let victim = objects(&folder).pop().unwrap();
    let saved = fs::read(&victim).unwrap();
    fs::remove_file(&victim).unwrap();
    assert_eq!(describe(&nodes).status.code(), Some(2), "an object is missing");
    fs::create_dir_all(victim.parent().unwrap()).unwrap();
    fs::write(&victim, saved).unwrap();

    ok(&["topic", "delete", "t", "-b", &nodes.bootstrap, "--yes"]);
    until("the objects of the deleted topic are gone", WITHIN, || objects(&folder).is_empty());
    nodes.stop();
}

fn convert(nodes: &Nodes) {
    let convert = ["topic", "storage", "convert", "t", "--class", "object", "--after-ms", "0"];
    ok(&[&convert[..], &["-b", &nodes.bootstrap]].concat());
}

fn describe(nodes: &Nodes) -> std::process::Output {
    run(&["topic", "storage", "describe", "t", "-b", &nodes.bootstrap, "-o", "json"])
}

/// Waits until all that is cold is packed, and nothing is missing; how many objects there are, and the
/// bytes in them.
fn settled(nodes: &Nodes) -> (u64, u64) {
    let mut sums = (0, 0);
    until("all that is cold is packed", WITHIN, || {
        let output = describe(nodes);
        let Ok(described) = serde_json::from_str::<Value>(&text(&output.stdout)) else {
            return false;
        };
        let sum = |of: &str| -> u64 {
            let partitions = described["partitions"].as_array().unwrap();
            partitions.iter().map(|partition| partition[of].as_u64().unwrap()).sum()
        };
        sums = (sum("objects"), sum("object_bytes"));
        output.status.success() && sum("to_pack_bytes") == 0 && sums.0 > 0
    });
    sums
}

/// Files below a folder: what it holds as objects, besides the one that names its owner.
fn objects(folder: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let paths = entries.flatten().map(|entry| entry.path());
    let paths = paths.filter(|path| !path.ends_with("owner"));
    paths.flat_map(|path| if path.is_dir() { objects(&path) } else { vec![path] }).collect()
}
