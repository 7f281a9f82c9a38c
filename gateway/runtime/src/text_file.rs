//! Small files of text that others write: they are read up to a bound.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

/// Reads a file of at most `size_bytes_max`.
pub fn read(path: &Path, size_bytes_max: usize) -> io::Result<String> {
    let mut text = String::new();
    let limit_bytes = u64::try_from(size_bytes_max).unwrap_or(u64::MAX);
    File::open(path)?.take(limit_bytes.saturating_add(1)).read_to_string(&mut text)?;
    if text.len() > size_bytes_max {
        let detail = format!("it has more than {size_bytes_max} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, detail));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_over_the_bound_is_not_read() {
        let path = std::env::temp_dir().join(format!("meridian-text-{}", std::process::id()));
        std::fs::write(&path, "1234").expect("written");
        assert_eq!(read(&path, 4).expect("read"), "1234");
        assert_eq!(read(&path, 3).expect_err("too large").kind(), io::ErrorKind::FileTooLarge);
        std::fs::remove_file(&path).expect("removed");
        assert!(read(&path, 4).is_err());
    }
}
