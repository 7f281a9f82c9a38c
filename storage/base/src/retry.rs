//! Two questions every error of an operation answers, so that callers and histories are honest.

/// Whether trying again can help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// The same request will fail again.
    Never,
    /// The same request to the same node may work later.
    Later,
    /// Another node is the right one.
    Elsewhere,
}

/// What a caller may conclude from an error.
pub trait Outcome {
    /// Whether trying again can help.
    fn retry(&self) -> Retry;

    /// Whether the operation may have taken effect nonetheless. An operation that may have is
    /// *unknown* to its caller, never *failed*.
    fn may_have_happened(&self) -> bool;
}
