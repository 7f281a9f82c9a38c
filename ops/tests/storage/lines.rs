//! Numbered lines that do not compress, as records of a topic.

use std::fs;

use crate::WITHIN;
use crate::common::{ok, run, text};
use crate::nodes::{Nodes, until};

/// Bytes of a line, its number included.
const LINE_SIZE_BYTES: usize = 1000;

/// What was written to a topic.
pub(crate) struct Lines {
    topic: &'static str,
    lines: Vec<String>,
}

impl Lines {
    /// Creates a topic and writes this many bytes to it.
    pub(crate) fn write(
        nodes: &Nodes,
        topic: &'static str,
        partition_count: u32,
        size_bytes: usize,
    ) -> Self {
        let class = "meridian.storage.class=mirror-3-dc";
        Self::write_with(nodes, topic, class, partition_count, size_bytes)
    }

    /// Writes to a topic with this config.
    pub(crate) fn write_with(
        nodes: &Nodes,
        topic: &'static str,
        config: &str,
        partition_count: u32,
        size_bytes: usize,
    ) -> Self {
        let count = partition_count.to_string();
        ok(&["topic", "create", topic, "-p", &count, "-c", config, "-b", &nodes.bootstrap]);
        let lines = Self { topic, lines: numbered(size_bytes / LINE_SIZE_BYTES) };
        let file = nodes.data().join(topic);
        fs::write(&file, lines.lines.join("\n") + "\n").unwrap();
        let file = file.to_str().unwrap();
        ok(&["topic", "produce", topic, "-b", &nodes.bootstrap, "--file", file]);
        lines
    }

    pub(crate) fn size_bytes(&self) -> usize {
        self.lines.len() * LINE_SIZE_BYTES
    }

    /// Reads the topic: every line, once, as it was.
    pub(crate) fn check(&self, nodes: &Nodes, when: &str) {
        let mut read = String::new();
        // Partitions may be on their way to other leaders.
        until(&format!("{} can be read {when}", self.topic), WITHIN, || {
            let output = run(&["topic", "consume", self.topic, "-b", &nodes.bootstrap]);
            read = text(&output.stdout);
            output.status.success()
        });
        let mut read: Vec<&str> = read.lines().collect();
        read.sort_unstable();
        let differs = read.iter().zip(&self.lines).position(|(read, written)| read != written);
        assert_eq!(differs, None, "{} {when}: the first line that differs", self.topic);
        assert_eq!(read.len(), self.lines.len(), "lines of {} {when}", self.topic);
    }
}

pub(crate) fn numbered(count: usize) -> Vec<String> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut digit = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        char::from(b'A' + (state % 26) as u8)
    };
    let line = |number| {
        let head = format!("{number:08} ");
        let filler: String = (head.len() + 1..LINE_SIZE_BYTES).map(|_| digit()).collect();
        head + &filler
    };
    (0..count).map(line).collect()
}
