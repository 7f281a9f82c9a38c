//! What nodes and homes say to each other, as bytes. Numbers are big-endian.

use bytes::{BufMut, Bytes, BytesMut};
use meridian_base::id::NodeId;
use meridian_storage::codec::{DecodeError, Source};

use super::{EntityId, SHARED_COUNT_MAX};

/// What a node needs of a home.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// The node.
    pub node: NodeId,
    /// Drawn when the process of the node started.
    pub life: u64,
    /// Higher in each report of that life.
    pub number: u64,
    /// How far the node has applied the metadata log: who has applied more knows later rates.
    pub applied_index: u64,
    /// The newest answer of this home that the node goes by.
    pub held: Held,
    /// Of each entity what the node needs.
    pub wants: Vec<Want>,
}

/// Which answer a node goes by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// [`Shares::life`].
    pub life: u64,
    /// [`Shares::number`].
    pub number: u64,
}

/// What a node needs of one entity's rate.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Want {
    /// The entity.
    pub entity: EntityId,
    /// Its quota, as the node knows it.
    pub per_second: f64,
    /// What clients would use at the node, as far as it can be known: units in a second.
    pub demand: f64,
}

/// The answer of a home.
#[derive(Clone, Debug, PartialEq)]
pub struct Shares {
    /// Drawn when the process of the home started.
    pub life: u64,
    /// Higher in each answer of that life.
    pub number: u64,
    /// What the node may use until its lease ends. What is not in it stays as it was.
    pub shares: Vec<(EntityId, Share)>,
}

/// An answer about one entity.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Share {
    /// So much, in units in a second.
    Lease(f64),
    /// Others have all of it, and are to give some up: ask again.
    Wait,
}

/// In the place of a share: there is none yet.
const NONE_YET: f64 = -1.0;

impl Report {
    /// The report as bytes.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(48 + self.wants.len() * 32);
        out.put_u32(self.node.get());
        for number in [self.life, self.number, self.applied_index, self.held.life, self.held.number]
        {
            out.put_u64(number);
        }
        out.put_u32(self.wants.len() as u32);
        for Want { entity, per_second, demand } in &self.wants {
            out.put_slice(&entity.to_bytes());
            out.put_f64(*per_second);
            out.put_f64(*demand);
        }
        out.freeze()
    }

    /// Reads a report.
    pub fn decode(bytes: Bytes) -> Result<Self, DecodeError> {
        let mut source = Source::new(bytes, "report of quotas");
        let report = Self {
            node: NodeId::new(source.u32()?),
            life: source.u64()?,
            number: source.u64()?,
            applied_index: source.u64()?,
            held: Held { life: source.u64()?, number: source.u64()? },
            wants: source.list(EntityId::SIZE_BYTES + 16, |source| {
                let entity = entity(source)?;
                let per_second = rate(source)?;
                if per_second <= 0.0 {
                    return Err(source.invalid("quota", per_second.to_bits()));
                }
                Ok(Want { entity, per_second, demand: rate(source)? })
            })?,
        };
        check_count(&source, report.wants.len())?;
        source.finish()?;
        Ok(report)
    }
}

impl Shares {
    /// The answer as bytes.
    pub fn encode(&self) -> Bytes {
        let mut out = BytesMut::with_capacity(20 + self.shares.len() * 24);
        out.put_u64(self.life);
        out.put_u64(self.number);
        out.put_u32(self.shares.len() as u32);
        for (entity, share) in &self.shares {
            out.put_slice(&entity.to_bytes());
            out.put_f64(match share {
                Share::Lease(per_second) => *per_second,
                Share::Wait => NONE_YET,
            });
        }
        out.freeze()
    }

    /// Reads an answer.
    pub fn decode(bytes: Bytes) -> Result<Self, DecodeError> {
        let mut source = Source::new(bytes, "shares of quotas");
        let shares = Self {
            life: source.u64()?,
            number: source.u64()?,
            shares: source.list(EntityId::SIZE_BYTES + 8, |source| {
                let entity = entity(source)?;
                let raw = source.u64()?;
                let share = match f64::from_bits(raw) {
                    value if value.is_finite() && value >= 0.0 => Share::Lease(value),
                    value if value.to_bits() == NONE_YET.to_bits() => Share::Wait,
                    _ => return Err(source.invalid("share", raw)),
                };
                Ok((entity, share))
            })?,
        };
        check_count(&source, shares.shares.len())?;
        source.finish()?;
        Ok(shares)
    }
}

fn entity(source: &mut Source) -> Result<EntityId, DecodeError> {
    let bytes = source.take(EntityId::SIZE_BYTES)?;
    let id = bytes.as_ref().try_into().map_err(|_| source.invalid("entity", bytes.len() as u64))?;
    Ok(EntityId::from_bytes(id))
}

fn rate(source: &mut Source) -> Result<f64, DecodeError> {
    let raw = source.u64()?;
    let value = f64::from_bits(raw);
    if value.is_finite() && value >= 0.0 { Ok(value) } else { Err(source.invalid("rate", raw)) }
}

fn check_count(source: &Source, count: usize) -> Result<(), DecodeError> {
    if count > SHARED_COUNT_MAX {
        return Err(source.invalid("count of entities", count as u64));
    }
    Ok(())
}

/// A fuzz target: both messages.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz(data: &[u8]) {
    let bytes = || Bytes::copy_from_slice(data);
    if let Ok(report) = Report::decode(bytes()) {
        assert_eq!(report.encode(), data);
    }
    if let Ok(shares) = Shares::decode(bytes()) {
        assert_eq!(shares.encode(), data);
    }
}

/// A message of each kind.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn fuzz_seeds() -> Vec<Vec<u8>> {
    let entity = EntityId::from_bytes([7; EntityId::SIZE_BYTES]);
    let report = Report {
        node: NodeId::new(3),
        life: 5,
        number: 9,
        applied_index: 100,
        held: Held { life: 8, number: 2 },
        wants: vec![Want { entity, per_second: 20e6, demand: 1.5e6 }],
    };
    let shares = vec![(entity, Share::Lease(1e6)), (entity, Share::Wait)];
    let shares = Shares { life: 8, number: 3, shares };
    vec![report.encode().to_vec(), shares.encode().to_vec()]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_written_is_read() {
        fuzz_seeds().iter().for_each(|seed| fuzz(seed));
        let [report, shares] = [0, 1].map(|at| Bytes::from(fuzz_seeds().remove(at)));
        assert!(Report::decode(report).is_ok() && Shares::decode(shares).is_ok());
    }

    #[test]
    fn nonsense_is_refused() {
        let of = |per_second, demand| Report {
            wants: vec![Want { entity: EntityId::of(0, b"e"), per_second, demand }],
            ..Report::decode(fuzz_seeds().remove(0).into()).unwrap()
        };
        for (per_second, demand) in [(0.0, 1.0), (-1.0, 1.0), (1.0, f64::NAN), (1.0, -1.0)] {
            assert!(Report::decode(of(per_second, demand).encode()).is_err());
        }
        let want = Want { entity: EntityId::of(0, b"e"), per_second: 1.0, demand: 0.0 };
        let many = Report { wants: vec![want; SHARED_COUNT_MAX + 1], ..of(1.0, 1.0) };
        assert!(Report::decode(many.encode()).is_err());
    }

    proptest! {
        #[test]
        fn decoding_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..128)) {
            fuzz(&bytes);
        }
    }
}
