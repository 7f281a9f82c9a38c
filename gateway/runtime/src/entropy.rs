//! Chance from the operating system.

use std::fs::File;
use std::io::{self, Read};

/// 128 bits that nobody can guess.
pub fn entropy() -> io::Result<u128> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(u128::from_ne_bytes(bytes))
}
