//! Federation: mirrors that keep offsets. Nothing of it is built yet; the crate holds its place in
//! the order of dependencies (it may use `storage`, never `gateway`).
