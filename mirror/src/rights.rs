//! Access rules and users that follow a source: a link changes and removes what it has set itself,
//! and sets what there is none of. All else is this cluster's own.
//!
//! Several links may carry one rule. It stays as long as one of them does.

use std::collections::{BTreeMap, BTreeSet};

/// What becomes of a rule, or of the credential of a user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// It is set here as it is at the source, and noted as the link's.
    Set,
    /// It is here by another link already, and noted as this link's too.
    Note,
    /// It is removed here, and the note of the link with it.
    Remove,
    /// It stays as it is, and is the link's no more.
    Release,
    /// It is another one at the source, and stays: it is not the link's.
    Own,
}

/// The sides that are compared.
#[derive(Clone, Copy, Debug)]
pub struct Sides<'a, K, V> {
    /// What the source has.
    pub source: &'a BTreeMap<K, V>,
    /// What is here.
    pub here: &'a BTreeMap<K, V>,
    /// What the link has set, as it set it.
    pub carried: &'a BTreeMap<K, V>,
}

/// The key of the row that notes what a link has set, given the key of what it is.
pub fn carried_key(link: &str, key: &[u8]) -> Vec<u8> {
    [link.as_bytes(), &[0], key].concat()
}

/// The link and the key that the key of such a row is made of.
pub fn parts(carried_key: &[u8]) -> Option<(&str, &[u8])> {
    let end = carried_key.iter().position(|byte| *byte == 0)?;
    let link = std::str::from_utf8(&carried_key[..end]).ok()?;
    Some((link, &carried_key[end + 1..]))
}

/// What has to be done for what is here to follow the source. `governs` says what the link has a
/// say in: all else stays as it is. `is_of_others` says whether other links have set what is here
/// too.
pub fn follow<K: Ord + Clone, V: PartialEq>(
    sides: Sides<'_, K, V>,
    governs: impl Fn(&K) -> bool,
    is_of_others: impl Fn(&K, &V) -> bool,
) -> BTreeMap<K, Step> {
    let Sides { source, here, carried } = sides;
    let keys: BTreeSet<&K> = source.keys().chain(carried.keys()).collect();
    let step = |key: &K| {
        let (found, noted) = (here.get(key), carried.get(key));
        if !governs(key) {
            return (found.is_none() && noted.is_some()).then_some(Step::Release);
        }
        let is_shared = found.is_some_and(|found| is_of_others(key, found));
        step(source.get(key), found, noted, is_shared)
    };
    keys.into_iter().filter_map(|key| Some((key.clone(), step(key)?))).collect()
}

fn step<V: PartialEq>(
    there: Option<&V>,
    found: Option<&V>,
    noted: Option<&V>,
    is_shared: bool,
) -> Option<Step> {
    let is_set_by_link = found.is_some() && found == noted;
    match there {
        None if noted.is_none() => None,
        None if is_set_by_link && !is_shared => Some(Step::Remove),
        None => Some(Step::Release),
        Some(_) if found.is_none() => Some(Step::Set),
        Some(_) if there == found => match noted {
            Some(_) if is_set_by_link => None,
            // Somebody has set here what the source has now.
            Some(_) => Some(Step::Release),
            None => is_shared.then_some(Step::Note),
        },
        Some(_) if is_set_by_link && !is_shared => Some(Step::Set),
        Some(_) if noted.is_some() => Some(Step::Release),
        Some(_) => Some(Step::Own),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_link_changes_what_it_has_set_and_what_there_is_none_of() {
        use Step::{Note, Own, Release, Remove, Set};
        for (there, found, noted, is_shared, expected) in [
            // New, changed and removed at the source.
            (Some(1), None, None, false, Some(Set)),
            (Some(1), Some(1), Some(1), false, None),
            (Some(2), Some(1), Some(1), false, Some(Set)),
            (None, Some(1), Some(1), false, Some(Remove)),
            // Set here by others: before, or since.
            (Some(1), Some(1), None, false, None),
            (Some(2), Some(1), None, false, Some(Own)),
            (Some(2), Some(1), Some(3), false, Some(Release)),
            (Some(1), Some(1), Some(3), false, Some(Release)),
            (None, Some(1), Some(3), false, Some(Release)),
            (None, Some(1), None, false, None),
            // Removed here.
            (Some(1), None, Some(1), false, Some(Set)),
            (None, None, Some(1), false, Some(Release)),
            // Another link has set it too.
            (Some(1), Some(1), None, true, Some(Note)),
            (None, Some(1), Some(1), true, Some(Release)),
            (Some(2), Some(1), Some(1), true, Some(Release)),
        ] {
            let found = step(there.as_ref(), found.as_ref(), noted.as_ref(), is_shared);
            assert_eq!(found, expected, "{there:?} {noted:?} {is_shared}");
        }
    }

    #[test]
    fn a_note_is_of_one_link_and_one_key() {
        let key = carried_key("west", &[1, 0, 2]);
        assert_eq!(parts(&key), Some(("west", &[1, 0, 2][..])));
        assert_eq!(parts(b"west"), None);
    }

    type Rules = BTreeMap<u8, ()>;

    /// A cluster with two links.
    #[derive(Debug, Default)]
    struct World {
        here: Rules,
        /// Those that operators have made here.
        own: BTreeSet<u8>,
        carried: [Rules; 2],
    }

    impl World {
        fn steps(&self, link: usize, source: &Rules, governs: u8) -> BTreeMap<u8, Step> {
            let (here, carried) = (&self.here, &self.carried[link]);
            let others = &self.carried[1 - link];
            let sides = Sides { source, here, carried };
            follow(sides, |key| *key < governs, |key, ()| others.contains_key(key))
        }

        fn follow(&mut self, link: usize, source: &Rules, governs: u8) {
            for (key, step) in self.steps(link, source, governs) {
                let carried = &mut self.carried[link];
                match step {
                    Step::Set => {
                        self.here.insert(key, ());
                        carried.insert(key, ());
                    }
                    Step::Note => drop(carried.insert(key, ())),
                    Step::Remove => {
                        self.here.remove(&key);
                        carried.remove(&key);
                    }
                    Step::Release => drop(carried.remove(&key)),
                    Step::Own => {}
                }
            }
        }
    }

    #[derive(Clone, Debug)]
    enum Event {
        /// A link looks at its source, and has a say in the keys below the number.
        Look(usize, Rules, u8),
        Make(u8),
        Delete(u8),
    }

    const KEYS: u8 = 5;

    fn event() -> impl Strategy<Value = Event> {
        let rules = prop::collection::btree_map(0..KEYS, Just(()), 0..4);
        prop_oneof![
            4 => (0..2_usize, rules, 0..=KEYS).prop_map(|(link, rules, governs)| {
                Event::Look(link, rules, governs)
            }),
            1 => (0..KEYS).prop_map(Event::Make),
            1 => (0..KEYS).prop_map(Event::Delete),
        ]
    }

    proptest! {
        #[test]
        fn rules_follow_and_what_is_this_clusters_own_is_never_touched(
            events in prop::collection::vec(event(), 1..30),
        ) {
            let mut world = World::default();
            for event in events {
                match event {
                    Event::Make(key) => if world.here.insert(key, ()).is_none() {
                        // Who makes a rule anew that a link had set has made it an own one of
                        // nobody's note.
                        let is_noted = world.carried.iter().any(|it| it.contains_key(&key));
                        if !is_noted { world.own.insert(key); }
                    },
                    Event::Delete(key) => {
                        world.here.remove(&key);
                        world.own.remove(&key);
                    }
                    Event::Look(link, source, governs) => {
                        let before = world.here.clone();
                        world.follow(link, &source, governs);
                        for key in 0..KEYS {
                            let is_here = world.here.contains_key(&key);
                            let is_carried = world.carried[link].contains_key(&key);
                            let is_others = world.carried[1 - link].contains_key(&key);
                            if key >= governs {
                                prop_assert_eq!(is_here, before.contains_key(&key));
                            } else if world.own.contains(&key) {
                                prop_assert!(is_here && !is_carried);
                            } else {
                                prop_assert_eq!(is_carried, source.contains_key(&key));
                                prop_assert_eq!(is_here, is_carried || (is_others && before.contains_key(&key)));
                            }
                        }
                        prop_assert_eq!(world.steps(link, &source, governs), BTreeMap::new());
                    }
                }
            }
        }
    }
}
