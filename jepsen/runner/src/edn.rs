//! EDN, as much as Jepsen's histories need: <https://github.com/edn-format/edn>.

use std::fmt;

/// A value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Edn {
    Nil,
    Bool(bool),
    Int(i64),
    /// Without its colon.
    Keyword(String),
    Text(String),
    Vector(Vec<Edn>),
    Map(Vec<(Edn, Edn)>),
}

/// What is no EDN, or of a kind that no history has.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("not EDN at byte {at}: {problem}")]
pub(crate) struct EdnError {
    at: usize,
    problem: &'static str,
}

pub(crate) fn keyword(name: &str) -> Edn {
    Edn::Keyword(name.to_owned())
}

impl Edn {
    pub(crate) fn map<'a>(entries: impl IntoIterator<Item = (&'a str, Edn)>) -> Self {
        Self::Map(entries.into_iter().map(|(key, value)| (keyword(key), value)).collect())
    }

    /// The value under a keyword of a map.
    pub(crate) fn get(&self, key: &str) -> Option<&Self> {
        let Self::Map(entries) = self else { return None };
        let is_it = |candidate: &Self| matches!(candidate, Self::Keyword(name) if name == key);
        entries.iter().find(|(candidate, _)| is_it(candidate)).map(|(_, value)| value)
    }

    pub(crate) fn int(&self) -> Option<i64> {
        match self {
            Self::Int(value) => Some(*value),
            _ => None,
        }
    }

    pub(crate) fn name(&self) -> Option<&str> {
        match self {
            Self::Keyword(name) => Some(name),
            _ => None,
        }
    }

    pub(crate) fn items(&self) -> Option<&[Self]> {
        match self {
            Self::Vector(items) => Some(items),
            _ => None,
        }
    }

    pub(crate) fn entries(&self) -> Option<&[(Self, Self)]> {
        match self {
            Self::Map(entries) => Some(entries),
            _ => None,
        }
    }

    pub(crate) fn parse(text: &str) -> Result<Self, EdnError> {
        let mut parser = Parser { bytes: text.as_bytes(), at: 0 };
        let value = parser.value()?;
        parser.skip_space();
        if parser.at == text.len() { Ok(value) } else { Err(parser.error("more than one value")) }
    }
}

impl From<i64> for Edn {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}

impl fmt::Display for Edn {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nil => to.write_str("nil"),
            Self::Bool(value) => write!(to, "{value}"),
            Self::Int(value) => write!(to, "{value}"),
            Self::Keyword(name) => write!(to, ":{name}"),
            Self::Text(text) => {
                let text = text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
                write!(to, "\"{text}\"")
            }
            Self::Vector(items) => {
                to.write_str("[")?;
                for (index, item) in items.iter().enumerate() {
                    write!(to, "{}{item}", if index == 0 { "" } else { " " })?;
                }
                to.write_str("]")
            }
            Self::Map(entries) => {
                to.write_str("{")?;
                for (index, (key, value)) in entries.iter().enumerate() {
                    write!(to, "{}{key} {value}", if index == 0 { "" } else { ", " })?;
                }
                to.write_str("}")
            }
        }
    }
}

struct Parser<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Parser<'_> {
    fn error(&self, problem: &'static str) -> EdnError {
        EdnError { at: self.at, problem }
    }

    fn peek(&self) -> Option<u8> {
        self.bytes.get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while self.peek().is_some_and(|it| it.is_ascii_whitespace() || it == b',') {
            self.at += 1;
        }
    }

    fn value(&mut self) -> Result<Edn, EdnError> {
        self.skip_space();
        match self.peek() {
            None => Err(self.error("the end")),
            Some(b'[' | b'(') => {
                self.at += 1;
                self.until_closed().map(Edn::Vector)
            }
            Some(b'{') => {
                self.at += 1;
                let items = self.until_closed()?;
                if items.len() % 2 != 0 {
                    return Err(self.error("a map with a key without value"));
                }
                let mut items = items.into_iter();
                let pairs = std::iter::from_fn(|| Some((items.next()?, items.next()?)));
                Ok(Edn::Map(pairs.collect()))
            }
            Some(b'#') if self.bytes.get(self.at + 1) == Some(&b'{') => {
                self.at += 2;
                self.until_closed().map(Edn::Vector)
            }
            Some(b'"') => self.text(),
            Some(_) => self.word(),
        }
    }

    fn until_closed(&mut self) -> Result<Vec<Edn>, EdnError> {
        let mut items = Vec::new();
        loop {
            self.skip_space();
            if matches!(self.peek(), Some(b']' | b'}' | b')')) {
                self.at += 1;
                return Ok(items);
            }
            items.push(self.value()?);
        }
    }

    fn text(&mut self) -> Result<Edn, EdnError> {
        let mut text = Vec::new();
        loop {
            self.at += 1;
            match self.peek().ok_or_else(|| self.error("a text without end"))? {
                b'"' => break,
                b'\\' => {
                    self.at += 1;
                    text.push(match self.peek() {
                        Some(b'n') => b'\n',
                        Some(b't') => b'\t',
                        Some(other) => other,
                        None => return Err(self.error("a text without end")),
                    });
                }
                byte => text.push(byte),
            }
        }
        self.at += 1;
        String::from_utf8(text).map(Edn::Text).map_err(|_| self.error("a text that is not UTF-8"))
    }

    fn word(&mut self) -> Result<Edn, EdnError> {
        let start = self.at;
        let ends = |it: u8| it.is_ascii_whitespace() || b",[](){}\"".contains(&it);
        while self.peek().is_some_and(|it| !ends(it)) {
            self.at += 1;
        }
        let word = std::str::from_utf8(&self.bytes[start..self.at]).unwrap_or_default();
        match word {
            "nil" => Ok(Edn::Nil),
            "true" => Ok(Edn::Bool(true)),
            "false" => Ok(Edn::Bool(false)),
            _ => match word.strip_prefix(':') {
                Some(name) if !name.is_empty() => Ok(keyword(name)),
                _ => word.parse().map(Edn::Int).map_err(|_| self.error("an unknown word")),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_printed_is_read_again() {
        let value = Edn::map([
            ("index", Edn::Int(-3)),
            ("type", keyword("ok")),
            ("error", Edn::Text("a \"quoted\"\nline \\".to_owned())),
            ("value", Edn::Vector(vec![Edn::Nil, Edn::Bool(true), Edn::Map(Vec::new())])),
        ]);
        assert_eq!(Edn::parse(&value.to_string()), Ok(value));
    }

    #[test]
    fn a_line_of_jepsen_is_read() {
        let line = "{:index 7, :time 12, :type :ok, :process 3, :f :poll, \
                    :value [[:poll {5 [[0 10] [1 11]]}]]}";
        let op = Edn::parse(line).unwrap();
        assert_eq!(op.get("f").and_then(Edn::name), Some("poll"));
        assert_eq!(op.to_string(), line);
    }

    #[test]
    fn what_is_no_edn_is_refused() {
        for text in ["", "[1", "{:a}", "\"x", "what", ":", "1 2"] {
            assert!(Edn::parse(text).is_err(), "{text}");
        }
    }
}
