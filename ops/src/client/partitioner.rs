//! Which partition a record goes to: the same as with any Kafka client, so that records of a key
//! stay together whoever writes them.

/// Chooses partitions of one topic.
#[derive(Debug)]
pub(crate) struct Partitioner {
    count: usize,
    next: usize,
}

impl Partitioner {
    /// Chooses among `count` partitions.
    pub(crate) fn new(count: usize) -> Self {
        Self { count: count.max(1), next: 0 }
    }

    /// The partition of a record: by its key, or in turns if it has none.
    pub(crate) fn partition(&mut self, key: Option<&[u8]>) -> usize {
        match key {
            Some(key) => (murmur2(key) & 0x7fff_ffff) as usize % self.count,
            None => {
                self.next = (self.next + 1) % self.count;
                self.next
            }
        }
    }
}

/// The hash that Kafka's Java client has always used for keys.
fn murmur2(data: &[u8]) -> u32 {
    const SEED: u32 = 0x9747_b28c;
    const M: u32 = 0x5bd1_e995;
    const R: u32 = 24;
    let length = u32::try_from(data.len()).unwrap_or(u32::MAX);
    let mut hash = SEED ^ length;
    let (words, rest) = data.as_chunks::<4>();
    for word in words {
        let mut k = u32::from_le_bytes(*word).wrapping_mul(M);
        k ^= k >> R;
        hash = hash.wrapping_mul(M) ^ k.wrapping_mul(M);
    }
    if !rest.is_empty() {
        let last = rest.iter().rev().fold(0, |value, byte| value << 8 | u32::from(*byte));
        hash = (hash ^ last).wrapping_mul(M);
    }
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(M);
    hash ^ hash >> 15
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of Apache Kafka's own test of this function.
    #[test]
    fn hashes_agree_with_kafka() {
        for (key, hash) in [
            ("21", -973_932_308),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
            ("abc", 479_470_107),
        ] {
            assert_eq!(murmur2(key.as_bytes()).cast_signed(), hash, "{key}");
        }
    }

    #[test]
    fn keys_stay_and_keyless_records_go_round() {
        let mut partitioner = Partitioner::new(3);
        let first = partitioner.partition(Some(b"key"));
        assert_eq!(partitioner.partition(Some(b"key")), first);
        let mut seen: Vec<_> = (0..3).map(|_| partitioner.partition(None)).collect();
        seen.sort_unstable();
        assert_eq!(seen, [0, 1, 2]);
    }
}
