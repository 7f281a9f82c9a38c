//! What other programs print.

/// The number after the first place with this text.
pub(crate) fn number_after(text: &str, name: &str) -> Option<f64> {
    let rest = text.split(name).nth(1)?.trim_start();
    let is_of_number = |letter: char| letter.is_ascii_digit() || ".e-+".contains(letter);
    let end = rest.find(|letter| !is_of_number(letter)).unwrap_or(rest.len());
    rest[..end].parse().ok()
}
