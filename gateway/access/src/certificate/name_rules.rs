//! Rules that make a user's name of a certificate's subject.
//!
//! **Source**: KIP-371; `org.apache.kafka.common.security.ssl.SslPrincipalMapper`.

use regex::{Captures, Regex};

const PREFIX: &str = "RULE:";

/// Rules in their order: the first whose pattern is the whole name makes the user's name of it. Without any rule
/// the name stays.
#[derive(Clone, Debug, Default)]
pub struct NameRules(Vec<NameRule>);

#[derive(Clone, Debug)]
struct NameRule {
    text: String,
    /// `None` leaves the name as it is.
    rewrite: Option<Rewrite>,
}

#[derive(Clone, Debug)]
struct Rewrite {
    whole: Regex,
    pattern: Regex,
    replacement: Vec<Part>,
    case: Case,
}

#[derive(Clone, Debug)]
enum Part {
    Letter(char),
    Group(usize),
}

#[derive(Clone, Copy, Debug)]
enum Case {
    Kept,
    Lower,
    Upper,
}

/// A text that is no rule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{text:?} is no rule: {problem}; it looks like RULE:pattern/replacement/[LU], or is DEFAULT"
)]
pub struct NameRuleError {
    /// The text.
    pub text: String,
    /// What is wrong with it.
    pub problem: String,
}

impl PartialEq for NameRules {
    fn eq(&self, other: &Self) -> bool {
        self.0.iter().map(|rule| &rule.text).eq(other.0.iter().map(|rule| &rule.text))
    }
}

impl Eq for NameRules {}

impl NameRules {
    /// Reads rules, each in a text of its own.
    pub fn parse(texts: &[String]) -> Result<Self, NameRuleError> {
        let rule = |text: &String| {
            let error = |problem| NameRuleError { text: text.clone(), problem };
            let rewrite = match text.trim() {
                "DEFAULT" => None,
                text => Some(rewrite(text).map_err(error)?),
            };
            Ok(NameRule { text: text.clone(), rewrite })
        };
        Ok(Self(texts.iter().map(rule).collect::<Result<_, _>>()?))
    }

    /// The user's name; `None` if no rule is for it.
    pub(super) fn apply(&self, name: &str) -> Option<String> {
        if self.0.is_empty() {
            return Some(name.to_owned());
        }
        self.0.iter().find_map(|rule| match &rule.rewrite {
            None => Some(name.to_owned()),
            Some(rewrite) => rewrite.apply(name),
        })
    }
}

impl Rewrite {
    fn apply(&self, name: &str) -> Option<String> {
        if !self.whole.is_match(name) {
            return None;
        }
        let name = self.pattern.replace_all(name, |found: &Captures<'_>| {
            let mut made = String::new();
            for part in &self.replacement {
                match part {
                    Part::Letter(letter) => made.push(*letter),
                    Part::Group(group) => {
                        made.push_str(found.get(*group).map(|it| it.as_str()).unwrap_or_default())
                    }
                }
            }
            made
        });
        Some(match self.case {
            Case::Kept => name.into_owned(),
            Case::Lower => name.to_lowercase(),
            Case::Upper => name.to_uppercase(),
        })
    }
}

fn rewrite(text: &str) -> Result<Rewrite, String> {
    let rest = text.strip_prefix(PREFIX).ok_or("it begins with neither RULE: nor DEFAULT")?;
    let fields = fields(rest);
    let [pattern, replacement, case] = &fields[..] else {
        return Err("it has not two slashes that no backslash is before".to_owned());
    };
    let case = match &**case {
        "" => Case::Kept,
        "L" => Case::Lower,
        "U" => Case::Upper,
        _ => return Err("after the last slash there is L, U or nothing".to_owned()),
    };
    let read = |pattern: &str| Regex::new(pattern).map_err(|error| error.to_string());
    let (whole, pattern) = (read(&format!("^(?:{pattern})$"))?, read(pattern)?);
    let replacement = parts(replacement, pattern.captures_len())?;
    Ok(Rewrite { whole, pattern, replacement, case })
}

/// What is between slashes. A backslash, and what is after it, stays as it is.
fn fields(text: &str) -> Vec<String> {
    let (mut fields, mut is_escaped) = (vec![String::new()], false);
    for letter in text.chars() {
        if letter == '/' && !is_escaped {
            fields.push(String::new());
        } else if let Some(last) = fields.last_mut() {
            last.push(letter);
        }
        is_escaped = letter == '\\' && !is_escaped;
    }
    fields
}

/// A replacement as Java reads it: `$1` is a group, with as many digits as there is a group for.
fn parts(text: &str, group_count: usize) -> Result<Vec<Part>, String> {
    let mut parts = Vec::new();
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => {
                let next = letters.next().ok_or("nothing is after the last backslash")?;
                parts.push(Part::Letter(next));
            }
            '$' => {
                let mut group = None;
                while let Some(digit) = letters.peek().and_then(|letter| letter.to_digit(10)) {
                    let next = group.unwrap_or(0) * 10 + digit as usize;
                    if next >= group_count {
                        break;
                    }
                    group = Some(next);
                    letters.next();
                }
                let group =
                    group.ok_or("a $ is not before the number of a group of the pattern")?;
                parts.push(Part::Group(group));
            }
            letter => parts.push(Part::Letter(letter)),
        }
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made(rules: &[&str], name: &str) -> Option<String> {
        let rules: Vec<String> = rules.iter().map(|rule| (*rule).to_owned()).collect();
        NameRules::parse(&rules).expect("rules").apply(name)
    }

    #[test]
    fn the_first_rule_that_fits_makes_the_name() {
        // The example of Kafka's documentation.
        let rules = [
            "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/",
            "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L",
            "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L",
            "DEFAULT",
        ];
        for (name, user) in [
            (
                "CN=serviceuser,OU=ServiceUsers,O=Unknown,L=Unknown,ST=Unknown,C=Unknown",
                "serviceuser",
            ),
            ("CN=adminUser,OU=Admin,O=Unknown,L=Unknown,ST=Unknown,C=Unknown", "adminuser@admin"),
            ("OU=x,CN=Some.One", "some.one"),
            ("UID=7,O=Ex", "UID=7,O=Ex"),
        ] {
            assert_eq!(made(&rules, name).as_deref(), Some(user));
        }
        assert_eq!(made(&["RULE:^CN=(.*)$/$1/U"], "CN=al"), Some("AL".to_owned()));
        assert_eq!(made(&["RULE:^CN=(.*)$/$1/"], "UID=al"), None);
        assert_eq!(made(&["RULE:CN=al/x/"], "CN=al,O=b"), None, "the pattern is the whole name");
        assert_eq!(made(&[], "CN=al"), Some("CN=al".to_owned()));
    }

    #[test]
    fn replacements_are_read_as_java_reads_them() {
        for (rule, user) in [
            ("RULE:^CN=(.)(.)$/$2$1/", "la"),
            ("RULE:^CN=(.)(.)$/$1\\/$2\\$1/", "a/l$1"),
            ("RULE:^CN=(.)(.)$/$10/", "a0"),
            ("RULE:^CN=(.)(.)(x?)$/$0$3/", "CN=al"),
            ("RULE:^CN=(\\w+)$/$1/", "al"),
        ] {
            assert_eq!(made(&[rule], "CN=al").as_deref(), Some(user), "{rule}");
        }
        for (rule, said) in [
            ("default", "neither RULE: nor DEFAULT"),
            ("RULE:a/b", "two slashes"),
            ("RULE:a/b/c/", "two slashes"),
            ("RULE:a/b/X", "L, U or nothing"),
            ("RULE:(/b/", "unclosed group"),
            ("RULE:(a)/$2/", "number of a group"),
            ("RULE:(a)/${a}/", "number of a group"),
            ("RULE:a/b\\/", "two slashes"),
        ] {
            let error = NameRules::parse(&[rule.to_owned()]).expect_err(rule).to_string();
            assert!(error.contains(said), "{rule}: {error}");
        }
    }
}
