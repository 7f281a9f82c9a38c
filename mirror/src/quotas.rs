//! Quotas of clients that follow a source: a link changes and removes what it has set itself, and sets
//! what there is none of. All else is this cluster's own.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::rows::{self, RowError};

/// The quotas of one entity (a user, a client, or both), by Kafka's names.
pub type Quotas = BTreeMap<String, f64>;

/// What a link has set of the quotas of one entity. Its key is the link's name, a zero, and the key of the
/// quotas themselves.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Carried {
    /// As they were set.
    pub quotas: Quotas,
}

impl Carried {
    /// What the keys of a link's rows begin with.
    pub fn prefix(link: &str) -> Vec<u8> {
        [link.as_bytes(), &[0]].concat()
    }

    /// The row's value.
    pub fn encode(&self) -> Vec<u8> {
        rows::encode(self)
    }

    /// Reads a row's value.
    pub fn decode(bytes: &[u8]) -> Result<Self, RowError> {
        rows::decode(bytes)
    }
}

/// What becomes of the quotas of one entity.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// All that are to be here.
    pub here: Quotas,
    /// Those among them that the link has set.
    pub carried: Quotas,
    /// Those that are others at the source, and this cluster's own here.
    pub own: BTreeSet<String>,
}

/// Has quotas follow the source, given what is here and what of it the link has set.
pub fn follow(source: &Quotas, here: &Quotas, carried: &Quotas) -> Outcome {
    let mut outcome = Outcome::default();
    let names: BTreeSet<&String> = source.keys().chain(here.keys()).collect();
    for name in names {
        let (there, found) = (source.get(name), here.get(name));
        if found.is_none() || found == carried.get(name) {
            for quotas in [&mut outcome.here, &mut outcome.carried] {
                quotas.extend(there.map(|value| (name.clone(), *value)));
            }
            continue;
        }
        outcome.here.extend(found.map(|value| (name.clone(), *value)));
        if there.is_some() && there != found {
            outcome.own.insert(name.clone());
        }
    }
    outcome
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const RATE: &str = "producer_byte_rate";

    fn of(value: Option<f64>) -> Quotas {
        value.map(|value| (RATE.to_owned(), value)).into_iter().collect()
    }

    #[test]
    fn a_link_changes_what_it_has_set_and_what_there_is_none_of() {
        for (source, here, carried, expected, is_carried, is_own) in [
            // New, changed and removed at the source.
            (Some(1.0), None, None, Some(1.0), true, false),
            (Some(2.0), Some(1.0), Some(1.0), Some(2.0), true, false),
            (None, Some(1.0), Some(1.0), None, false, false),
            // Set here by others: before, or since.
            (Some(2.0), Some(1.0), None, Some(1.0), false, true),
            (Some(2.0), Some(1.0), Some(3.0), Some(1.0), false, true),
            (None, Some(1.0), Some(3.0), Some(1.0), false, false),
            (Some(1.0), Some(1.0), None, Some(1.0), false, false),
            // Removed here.
            (Some(1.0), None, Some(1.0), Some(1.0), true, false),
            (None, None, Some(1.0), None, false, false),
        ] {
            let outcome = follow(&of(source), &of(here), &of(carried));
            let carried = if is_carried { of(expected) } else { Quotas::new() };
            assert_eq!((outcome.here, outcome.carried), (of(expected), carried));
            assert_eq!(outcome.own.contains(RATE), is_own, "{source:?} {here:?}");
        }
    }

    /// These bytes are in metadata logs: they never change.
    #[test]
    fn the_encoding_is_what_it_was() {
        let carried = Carried { quotas: [("q".to_owned(), 1.0)].into() };
        assert_eq!(carried.encode(), b"\x01\x01\x01q\0\0\0\0\0\0\xf0\x3f");
        assert_eq!(Carried::decode(&carried.encode()), Ok(carried));
    }

    fn quotas() -> impl Strategy<Value = Quotas> {
        let value = (1..4_u8).prop_map(f64::from);
        prop::collection::btree_map("[ab]", value, 0..3)
    }

    proptest! {
        #[test]
        fn what_is_this_clusters_own_is_never_touched(
            mut here in quotas(),
            steps in prop::collection::vec((quotas(), prop::option::of(("[ab]", 4..9_u8))), 1..10),
        ) {
            let mut own = here.clone();
            let mut carried = Quotas::new();
            for (source, altered) in steps {
                if let Some((name, value)) = altered {
                    here.insert(name.clone(), f64::from(value));
                    own.insert(name, f64::from(value));
                }
                let outcome = follow(&source, &here, &carried);
                for (name, value) in &own {
                    prop_assert_eq!(outcome.here.get(name), Some(value));
                    prop_assert!(!outcome.carried.contains_key(name));
                }
                for (name, value) in source.iter().filter(|(name, _)| !own.contains_key(*name)) {
                    prop_assert_eq!(outcome.here.get(name), Some(value));
                }
                (here, carried) = (outcome.here, outcome.carried);
                prop_assert_eq!(follow(&source, &here, &carried).here, here.clone());
            }
        }
    }
}
