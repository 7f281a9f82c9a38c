//! A node for tests of the front.
