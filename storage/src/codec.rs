//! Bounded decoding of our own formats: nothing is allocated from a claimed count, nothing panics.

use bytes::{Buf, Bytes};
use meridian_base::position::{Generation, LogPoint, Step};

/// Why bytes from the wire or the disk were refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// The bytes end too early.
    #[error("{what}: ends {missing} bytes too early")]
    Short {
        /// What was being read.
        what: &'static str,
        /// How many bytes more were needed.
        missing: usize,
    },
    /// A field has a value that has no meaning.
    #[error("{what}: {field} cannot be {value}")]
    Invalid {
        /// What was being read.
        what: &'static str,
        /// The field.
        field: &'static str,
        /// Its value.
        value: u64,
    },
    /// Bytes are left over.
    #[error("{what}: {extra} bytes too many")]
    TooLong {
        /// What was being read.
        what: &'static str,
        /// How many bytes are left.
        extra: usize,
    },
}

/// Bytes being decoded.
#[derive(Debug)]
pub struct Source {
    bytes: Bytes,
    what: &'static str,
}

macro_rules! number {
    ($name:ident, $get:ident, $type:ty) => {
        #[doc = concat!("Reads a big-endian `", stringify!($type), "`.")]
        pub fn $name(&mut self) -> Result<$type, DecodeError> {
            self.need(size_of::<$type>())?;
            Ok(self.bytes.$get())
        }
    };
}

impl Source {
    /// Decodes `bytes`; `what` names the format in errors.
    pub fn new(bytes: Bytes, what: &'static str) -> Self {
        Self { bytes, what }
    }

    number!(u8, get_u8, u8);
    number!(u16, get_u16, u16);
    number!(u32, get_u32, u32);
    number!(i32, get_i32, i32);
    number!(u64, get_u64, u64);
    number!(i64, get_i64, i64);

    /// Takes the next `size_bytes` without copying.
    pub fn take(&mut self, size_bytes: usize) -> Result<Bytes, DecodeError> {
        self.need(size_bytes)?;
        Ok(self.bytes.split_to(size_bytes))
    }

    /// Takes a `u32` length and that many bytes.
    pub fn sized(&mut self) -> Result<Bytes, DecodeError> {
        let size_bytes = self.u32()? as usize;
        self.take(size_bytes)
    }

    /// Takes all that is left.
    pub fn rest(&mut self) -> Bytes {
        self.bytes.split_off(0)
    }

    /// How many bytes are left.
    pub fn left(&self) -> usize {
        self.bytes.len()
    }

    /// Reads a generation and a step.
    pub fn point(&mut self) -> Result<LogPoint, DecodeError> {
        let generation = Generation::new(self.u32()?);
        Ok(LogPoint::new(generation, self.step()?))
    }

    /// Reads a step. Each has a next one, so the highest number is none.
    pub fn step(&mut self) -> Result<Step, DecodeError> {
        match self.u64()? {
            u64::MAX => Err(self.invalid("step", u64::MAX)),
            raw => Ok(Step::new(raw)),
        }
    }

    /// Reads a `u32` count and that many items of at least `item_size_bytes_min` each.
    pub fn list<T>(
        &mut self,
        item_size_bytes_min: usize,
        mut item: impl FnMut(&mut Self) -> Result<T, DecodeError>,
    ) -> Result<Vec<T>, DecodeError> {
        let count = self.u32()? as usize;
        self.need(count.saturating_mul(item_size_bytes_min.max(1)))?;
        let mut items = Vec::with_capacity(count);
        for _ in 0..count {
            items.push(item(self)?);
        }
        Ok(items)
    }

    /// An error about `field`.
    pub fn invalid(&self, field: &'static str, value: u64) -> DecodeError {
        DecodeError::Invalid { what: self.what, field, value }
    }

    /// Refuses left-over bytes.
    pub fn finish(self) -> Result<(), DecodeError> {
        if self.bytes.is_empty() {
            Ok(())
        } else {
            Err(DecodeError::TooLong { what: self.what, extra: self.bytes.len() })
        }
    }

    fn need(&self, size_bytes: usize) -> Result<(), DecodeError> {
        match size_bytes.checked_sub(self.bytes.remaining()) {
            None | Some(0) => Ok(()),
            Some(missing) => Err(DecodeError::Short { what: self.what, missing }),
        }
    }
}
