//! What a request names more than once, found in one pass however long the request is.

use std::collections::HashSet;
use std::hash::Hash;

/// Those of `keys` that come more than once.
pub(super) fn repeated<K: Clone + Eq + Hash>(keys: impl IntoIterator<Item = K>) -> HashSet<K> {
    let mut seen = HashSet::new();
    keys.into_iter().filter(|key| !seen.insert(key.clone())).collect()
}

/// `items` without those whose key came before, in their order: an answer for each would let a short
/// request ask for any amount of memory.
pub(super) fn unique<T, K: Eq + Hash>(items: Vec<T>, key: impl Fn(&T) -> K) -> Vec<T> {
    let mut seen = HashSet::new();
    items.into_iter().filter(|item| seen.insert(key(item))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_comes_twice_is_found_and_what_comes_once_is_not() {
        assert_eq!(repeated(["a", "b", "a", "c", "a", "c"]), HashSet::from(["a", "c"]));
        assert_eq!(repeated::<&str>([]), HashSet::new());
        assert_eq!(unique(vec![3, 1, 3, 2, 1], |it| *it), [3, 1, 2]);
    }
}
