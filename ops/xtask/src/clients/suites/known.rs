//! The table of known differences, `known.toml`: which tests fail, and why.
//!
//! ```text
//! [suite]              at any number of nodes
//! [suite.nodes-1]      at one node only
//! "test" = "why"       a test that ends with * stands for all that begin so
//! "test" = "at times: why"   it may pass
//! ```

const SHIPPED: &str = include_str!("known.toml");
const AT_TIMES: &str = "at times: ";

/// A test that is known to fail.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::clients) struct Difference {
    suite: String,
    /// At every number of nodes if absent.
    node_count: Option<u16>,
    pub(in crate::clients) test: String,
    pub(in crate::clients) why: String,
}

impl Difference {
    pub(in crate::clients) fn covers(&self, test: &str) -> bool {
        match self.test.strip_suffix('*') {
            Some(beginning) => test.starts_with(beginning),
            None => test == self.test,
        }
    }

    pub(in crate::clients) fn is_at_times(&self) -> bool {
        self.why.starts_with(AT_TIMES)
    }
}

/// All of them.
#[derive(Debug)]
pub(in crate::clients) struct Known(Vec<Difference>);

impl Known {
    /// The table that the project keeps.
    pub(in crate::clients) fn shipped() -> Result<Self, String> {
        Self::parse(SHIPPED).map_err(|problem| format!("suites/known.toml:{problem}"))
    }

    /// Understands as much TOML as the table needs.
    pub(in crate::clients) fn parse(text: &str) -> Result<Self, String> {
        let mut differences = Vec::new();
        let mut section = None;
        for (line, number) in text.lines().map(str::trim).zip(1..) {
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            if let Some(name) = line.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
                section = Some(heading(name).ok_or_else(|| format!("{number}: what suite?"))?);
                continue;
            }
            let (suite, node_count) =
                section.clone().ok_or_else(|| format!("{number}: of no suite"))?;
            let (test, why) =
                pair(line).ok_or_else(|| format!("{number}: expected \"test\" = \"why\""))?;
            differences.push(Difference { suite, node_count, test, why });
        }
        Ok(Self(differences))
    }

    /// The suites that it is about.
    #[cfg(test)]
    pub(in crate::clients) fn suites(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|known| known.suite.as_str())
    }

    /// Those of a suite at so many nodes.
    pub(in crate::clients) fn of(&self, suite: &str, node_count: u16) -> Vec<&Difference> {
        let fits = |known: &&Difference| {
            known.suite == suite && known.node_count.is_none_or(|count| count == node_count)
        };
        self.0.iter().filter(fits).collect()
    }
}

fn heading(name: &str) -> Option<(String, Option<u16>)> {
    match name.split_once('.') {
        None => Some((name.to_owned(), None)),
        Some((suite, rest)) => {
            let count = rest.strip_prefix("nodes-")?.parse().ok()?;
            Some((suite.to_owned(), Some(count)))
        }
    }
}

fn pair(line: &str) -> Option<(String, String)> {
    let (test, rest) = quoted(line)?;
    let (why, rest) = quoted(rest.trim_start().strip_prefix('=')?.trim_start())?;
    (rest.is_empty() && !why.is_empty()).then_some((test, why))
}

/// The string that a text begins with, and what follows.
fn quoted(text: &str) -> Option<(String, &str)> {
    let text = text.strip_prefix('"')?;
    let mut string = String::new();
    let mut letters = text.char_indices();
    while let Some((index, letter)) = letters.next() {
        match letter {
            '"' => return Some((string, &text[index + 1..])),
            '\\' => match letters.next()?.1 {
                escaped @ ('"' | '\\') => string.push(escaped),
                _ => return None,
            },
            _ => string.push(letter),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shipped_table_is_about_suites_that_there_are() {
        let known = Known::shipped().unwrap();
        for difference in &known.0 {
            assert!(super::super::names().contains(&difference.suite.as_str()), "{difference:?}");
            assert!(matches!(difference.node_count, None | Some(1 | 3)), "{difference:?}");
        }
    }

    #[test]
    fn differences_are_of_a_suite_and_perhaps_of_a_size() {
        let text = "# about\n[a]\n\"T/\\\"x\\\"\" = \"why\"\n\n[a.nodes-3]\n\"U*\" = \"because\"\n";
        let known = Known::parse(text).unwrap();
        assert_eq!(known.of("a", 1).len(), 1);
        assert_eq!(known.of("b", 1).len(), 0);
        let three = known.of("a", 3);
        assert!(three[0].covers("T/\"x\"") && !three[0].covers("T/\"x\"y"));
        assert!(three[1].covers("Uvw") && !three[1].covers("V"));
    }

    #[test]
    fn a_line_that_is_not_understood_is_named() {
        for (text, line) in [
            ("\"T\" = \"why\"", "1: "),
            ("[a]\nT = \"why\"", "2: "),
            ("[a]\n\"T\" = \"\"", "2: "),
            ("[a.b]", "1: "),
            ("[a]\n\n\"T\" = \"why\" x", "3: "),
        ] {
            assert!(Known::parse(text).unwrap_err().starts_with(line), "{text}");
        }
    }
}
